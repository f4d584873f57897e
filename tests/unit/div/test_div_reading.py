"""The commands of div that read: a mistake is one line and exit 2; they start at once, with nothing heavy."""

import pytest

from tests.support.metrics_command import Command

HEAVY = ("torch", "prefect", "sqlalchemy", "fastapi", "pandas", "pyarrow", "boto3", "numpy")
READING = [
    ["list"],
    ["show", "run"],
    ["files", "run"],
    ["telemetry", "run"],
    ["telemetry", "run", "loss", "-f"],
    ["telemetry", "run", "--json", "-f"],
]


@pytest.fixture
def div(monkeypatch, capsys, tmp_path):
    """The command with the key of a server that is not there."""
    return Command(
        monkeypatch, capsys, tmp_path, "div", O41_METRICS_HOST="http://127.0.0.1:1", O41_METRICS_API_KEY="k"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["telemtry"], "No such command 'telemtry'"),
        (["telemetry"], "Missing argument 'RUN'"),
        (["telemetry", "run", "--tsv"], "No such option: --tsv"),
        (["telemetry", "run", "-f"], "-f needs KEYs, or --json: the table of every key is of one moment"),
        (
            ["telemetry", "run", "-f", "--csv"],
            "-f --csv needs KEYs: the columns are named before the first point",
        ),
        (["telemetry", "run", "--csv", "--json"], "--csv and --json are two forms: give one of them"),
        (["telemetry", "run", "--x", "epoch"], "--x names the first column, and without keys there is none"),
        (["telemetry", "run", "--x", "epoch", "--json"], "give KEYs, or --csv"),
        (["telemetry", "r\udcff"], "is no UTF-8 text: give one that is"),
        (["telemetry", ""], "there is no run '': div list shows those that there are"),
        (["show", ""], "there is no run '': div list shows those that there are"),
        (["list", "--limit", "0"], "--limit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_2(div, arguments, says):
    refused = div(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert refused.line.startswith("div: ")
    assert says in refused.line


def test_without_a_key_what_to_do_is_said(div):
    del div.env["O41_METRICS_API_KEY"]
    refused = div("telemetry", "run-7")
    assert refused.code == 2
    assert "there is no key for Metrics: set O41_METRICS_API_KEY" in refused.line
    assert refused.line.endswith(", or start a stack on this machine: slugline up")


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_server_that_is_not_there_is_one_line_and_exit_75(div, arguments):
    refused = div(*arguments)
    assert (refused.code, refused.out) == (75, "")
    assert "Metrics at http://127.0.0.1:1 cannot be reached" in refused.line


def test_commands_that_read_load_nothing_that_they_do_not_need(div):
    assert div.loads(HEAVY, [["--help"], *READING]) == [(0, []), *[(75, []) for _ in READING]]


@pytest.mark.parametrize("arguments", [["--help"], ["telemetry", "run"]], ids=" ".join)
def test_a_command_that_reads_starts_at_once(div, arguments):
    # benchmarks/telemetry.py measures the time that passes.
    assert div.takes_less(4, *arguments)
