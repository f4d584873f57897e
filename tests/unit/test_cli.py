"""flows.cli: a mistake is one line and exit 2, whatever it is, and help costs nothing."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from flows.run_output import table
from flows.scheduling import RunView
from runtime import __version__
from tests.support.metrics_command import Command


@pytest.fixture
def slugline(monkeypatch, capsys, tmp_path):
    """The command where no stack ever was."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return Command(monkeypatch, capsys, tmp_path, "slugline", SLUGLINE_DATA=str(tmp_path / "data"))


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "experiment.py"
    path.write_text("")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tarin"], "No such command 'tarin'"),
        (["up", "--port-s3", "42x"], "'--port-s3': it must be a whole number"),
        (["up", "--port-s3", "70000"], "port 70000 (S3) is not within 1 to 65535"),
        (["up", "--nope"], "No such option: --nope"),
        (
            ["logs", "s4"],
            "choose of s3, prefect, metrics, worker, rescue; `slugline follow SLUG` shows a run",
        ),
        (["train"], "Missing argument 'FILE'"),
        (["train", "/none.py"], "there is no experiment file /none.py"),
        (["train", "/etc/hostname"], "an experiment file ends in .py, got hostname"),
        (["train", "FILE", "--knob", "width"], "--knob takes NAME=VALUE, got 'width'"),
        (["train", "FILE", "--knob", "=3"], "--knob takes NAME=VALUE, got '=3'"),
        (["train", "FILE", "--steps", "0"], "steps must be a whole number of at least 1, got 0"),
        (["train", "FILE", "--gpus", "-1"], "gpus must be a whole number of at least 0, got -1"),
        (["train", "FILE", "--notice", "60"], "notice_s must be above 0 and at most 25, got 60"),
        (["train", "FILE", "--device", "tpu"], "device must be cpu or cuda, got 'tpu'"),
        (["train", "FILE", "--location", "here"], "location must be s3://bucket/prefix or an absolute path"),
        (["train", "FILE", "--metrics", "csv"], "--metrics takes jsonl:PATH, stdout or syvain, got 'csv'"),
        (["train", "FILE", "--slug", ""], "a slug must be 1 to 200 UTF-16 units long, got 0"),
        (["train", "FILE", "--cron", "* * * * *", "-f"], "--follow follows one run"),
        (["train", "FILE"], "is not up: start it with slugline up"),
        (["resume", "some-slug"], "is not up: start it with slugline up"),
        (["cancel", "some-slug"], "is not up: start it with slugline up"),
        (["list"], "is not up: start it with slugline up"),
        (["list", "--limit", "0"], "--limit"),
        (["env"], "there is no stack in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_2(slugline, arguments, says, experiment):
    given = [experiment if argument == "FILE" else argument for argument in arguments]
    refused = slugline(*given)
    assert (refused.code, refused.out) == (2, "")
    assert refused.line.startswith("slugline: ")
    assert says in refused.line


def test_a_path_that_cannot_be_looked_at_is_one_line_and_exit_75(slugline):
    refused = slugline("train", "/" + "long" * 99 + ".py")
    assert (refused.code, refused.out) == (75, "")
    assert refused.line.endswith("long.py cannot be used: File name too long")


def test_the_version_is_that_of_the_package(slugline):
    assert slugline.apart("--version").out == f"slugline {__version__}\n"


def test_a_reader_of_the_help_that_has_gone_is_no_failed_run(slugline):
    reader, writer = os.pipe()
    os.close(reader)
    process = slugline.process("--help", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (process.communicate()[1], process.returncode) == (b"", 141)


def test_down_where_nothing_ever_ran_is_fine(slugline, tmp_path):
    said = slugline("down", "--data", tmp_path / "none")
    assert (said.code, said.err) == (0, "the stack is down\n")
    assert not (tmp_path / "none").exists()


def test_status_where_nothing_ever_ran_says_so(slugline, tmp_path):
    said = slugline("status", "--data", tmp_path / "none")
    assert said.code == 1
    assert [row[:2] for row in said.rows] == [
        [name, "down"] for name in ("s3", "prefect", "metrics", "worker", "rescue")
    ]


def test_help_loads_neither_torch_nor_prefect_and_is_quick(slugline):
    code = (
        "import sys, flows.cli\n"
        "try: flows.cli.main(['train', '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "loaded = {'torch', 'prefect', 'boto3', 'httpx', 'numpy'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert slugline.takes_less(5, "--help")


def view(slug: str, state: str, message: str = "") -> RunView:
    return RunView(
        slug=slug,
        flow_run_id="f",
        state=state,
        message=message,
        location="/at",
        scheduled=datetime(2027, 1, 1, tzinfo=UTC),
        started=None,
        ended=None,
        page="p",
        live=False,
    )


def test_a_list_stands_in_columns_however_short_its_slugs_and_says_why_a_run_is_not_well():
    runs = [view("ab", "Completed", "done"), view("c", "Waiting", "no bucket\n" + "x" * 100)]
    head, first, second, why = table(runs, columns=40)
    assert (head.index("STATE"), head.index("SCHEDULED (UTC)")) == (6, 17)
    assert first.index("Completed") == second.index("Waiting") == 6
    assert first.index("2027-01-01 00:00:00") == 17
    assert first.index("/at") == head.index("LOCATION")
    assert why == f"  no bucket {'x' * 28}"
