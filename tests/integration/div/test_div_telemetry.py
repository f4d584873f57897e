"""div telemetry with a real server: the page's examples byte for byte, and a run followed until it ends."""

import csv
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.metrics_proxy import running_metrics_proxy
from tests.support.telemetry_runs import RunAtServer, page_points

GOLDEN = Path(__file__).parents[2] / "contract" / "telemetry"
POINTS = [json.loads(line)["data"] for line in (GOLDEN / "points.jsonl").read_text().splitlines()]


@pytest.fixture
def filled(run):
    run.write(*POINTS)
    return run


def test_with_no_keys_every_key_is_printed_as_in_the_page(div, run):
    run.write(*page_points())
    said = div.ok("telemetry", run.name)
    assert (said.out, said.err) == ((GOLDEN / "table.txt").read_text(), "")


@pytest.mark.parametrize(
    ("arguments", "golden"),
    [
        (["loss", "eval_loss"], "columns.tsv"),
        (["loss", "--x", "epoch"], "epoch.tsv"),
        (["--csv"], "all.csv"),
        (["--json"], "points.jsonl"),
        (["loss", "eval_loss", "-f"], "columns.tsv"),
        (["-f", "--json"], "points.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_points_are_printed_as_the_golden_files(div, filled, arguments, golden):
    filled.end()
    said = div.apart("telemetry", filled.name, *arguments)
    assert (said.code, said.out, said.err) == (0, (GOLDEN / golden).read_text(), "")


def test_the_first_column_is_the_place_in_the_run_when_it_writes_no_step_or_when_it_is_asked_for(div, run):
    run.write({"loss": 2.5}, {"epoch": 0.5}, {})
    expected = "seq\tloss\n1\t2.5\n2\t\n3\t\n"
    assert div.ok("telemetry", run.name, "loss").out == expected
    run.write({"step": 7, "loss": 2})
    assert div.ok("telemetry", run.name, "loss").out == "step\tloss\n\t2.5\n\t\n\t\n7\t2\n"
    assert div.ok("telemetry", run.name, "loss", "--x", "seq").out == f"{expected}4\t2\n"
    assert div.ok("telemetry", run.name, "--csv", "--x", "epoch").out.splitlines()[0] == "epoch,loss,step"
    assert div.ok("telemetry", run.name, "loss", "--csv").out.splitlines()[0] == "step,loss"


def test_the_layout_has_no_say_in_the_first_column(div, client, name):
    run = RunAtServer(client, name, telemetry='x = "epoch"\n[[panel]]\ny = "loss"\n')
    run.write({"step": 1, "epoch": 0.5, "loss": 2})
    assert div.ok("telemetry", name, "loss").out == "step\tloss\n1\t2\n"


def test_json_with_keys_has_those_and_with_x_that_one_too(div, filled):
    assert div.ok("telemetry", filled.name, "eval_loss", "--x", "epoch", "--json").out == (
        '{"seq": 1, "data": {"epoch": 0.04}}\n'
        '{"seq": 2, "data": {"eval_loss": 1.88}}\n'
        '{"seq": 3, "data": {}}\n'
        '{"seq": 4, "data": {"epoch": 0.08}}\n'
    )


def test_a_key_that_was_never_written_is_an_empty_column_and_a_note(div, filled):
    said = div.ok("telemetry", filled.name, "loss", "acc", "train/loss", "--csv", "--x", "epok")
    assert said.out.splitlines()[:2] == ["epok,loss,acc,train/loss", ",2.31,,"]
    assert said.err.splitlines() == [
        f"telemetry: no point has epok: div telemetry {filled.name} shows the keys that there are",
        f"telemetry: no point has acc: div telemetry {filled.name} shows the keys that there are",
        "telemetry: no point has 'train/loss': a key is letters, digits, _ and - between dots",
    ]


def test_a_key_may_begin_with_a_dash(div, run):
    run.write({"-loss": 1, "--csv": 2, "a-b": 3})
    assert div.ok("telemetry", run.name, "--x=-loss", "--", "--csv", "a-b").out == (
        "-loss\t--csv\ta-b\n1\t2\t3\n"
    )


def test_what_was_dropped_is_counted_on_standard_error_in_every_form(div, run):
    run.write({"loss": 1}, dropped={"not_json": 1, "bad_key": 3, "from_the_future": 2})
    expected = [
        "telemetry: dropped a line that is not JSON; write one JSON object per line",
        (
            "telemetry: left out 3 numbers whose key is not letters, digits, _ and - between dots;"
            " name it like train.loss, not train/loss"
        ),
        "telemetry: dropped 2: from_the_future",
    ]
    run.end()
    for arguments in ([], ["loss"], ["--csv"], ["--json"], ["loss", "-f"]):
        said = div.apart("telemetry", run.name, *arguments)
        assert said.err.splitlines() == expected
        assert "telemetry:" not in said.out
    run.write(dropped={"not_json": 3})
    assert div.ok("telemetry", run.name).err.splitlines()[0] == (
        "telemetry: dropped 3 lines that are not JSON; write one JSON object per line"
    )


def test_a_run_without_points_has_an_empty_table_and_says_so(div, run):
    said = div.ok("telemetry", run.name)
    assert (said.out, said.line) == (
        "key  count  last     min      max\n",
        f"telemetry: {run.name} has written no points yet",
    )
    run.end()
    said = div.apart("telemetry", run.name, "loss", "-f")
    assert (said.out, said.line) == ("seq\tloss\n", f"telemetry: {run.name} has written no points")
    assert div.ok("telemetry", run.name, "--json").out == ""
    assert div.ok("telemetry", run.name, "--csv").out == "seq\n"


@pytest.mark.parametrize(
    "odd",
    ["-f", "a/b", "..", "a b?&#%", "é\u2028", "../../healthz"],
    ids=["dash", "slash", "dots", "url", "text", "path"],
)
def test_a_run_may_have_any_name(div, client, name, odd):
    run = RunAtServer(client, odd if odd in {"-f", ".."} else f"{odd}{name}")
    run.write({"loss": 1})
    assert div.ok("telemetry", "--json", "--", run.name).out == '{"seq": 1, "data": {"loss": 1}}\n'
    assert div.ok("show", "--json", "--", run.name).json["name"] == run.name
    assert div.ok("telemetry", run.id).out.splitlines()[1].split() == ["loss", "1", "1", "1", "1"]


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--csv"], ["-f"]], ids=" ".join)
@pytest.mark.parametrize("odd", ["none", "no/ne", "..", "-none"])
def test_a_run_that_is_not_there_is_one_line_and_exit_2(div, odd, arguments):
    missing = div("telemetry", *arguments, "--", f"{odd}-x", "loss")
    assert (missing.code, missing.out) == (2, "")
    assert missing.line == f"div: there is no run '{odd}-x': div list shows those that there are"


def lines(process, count):
    return [process.stdout.readline() for _ in range(count)]


def test_follow_prints_points_as_they_arrive_until_the_run_ends(div, run):
    with div.process(
        "telemetry", run.name, "loss", "-f", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        run.write({"step": 1, "loss": 2.5})
        assert lines(process, 2) == ["step\tloss\n", "1\t2.5\n"]
        run.write({"step": 2}, {"step": 3, "loss": 1})
        assert lines(process, 2) == ["2\t\n", "3\t1\n"]
        run.write({"step": 4, "loss": 0.5}, dropped={"not_json": 1})
        run.end()
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "4\t0.5\n")
    assert err == "telemetry: dropped a line that is not JSON; write one JSON object per line\n"


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_follow_ends_with_the_run_however_that_ends(div, filled, state):
    filled.end(state)
    assert div.apart("telemetry", filled.name, "--json", "-f").code == 0


def test_the_last_point_of_a_followed_run_goes_through_tail(div, run, tmp_path):
    """The page's `div telemetry run-7 loss -f | tail -1`."""
    run.write(*page_points())
    reader, writer = os.pipe()
    with (
        div.process("telemetry", run.name, "loss", "-f", stdout=writer) as process,
        subprocess.Popen(["tail", "-1"], stdin=reader, stdout=subprocess.PIPE, text=True) as tail,
    ):
        os.close(reader)
        os.close(writer)
        run.write({"step": 41300, "loss": 0.04})
        run.end()
        assert tail.communicate(timeout=30)[0] == "41300\t0.04\n"
        assert process.wait(30) == 0


@pytest.mark.parametrize("arguments", [["loss"], ["loss", "-f"], ["--json", "-f"], ["--csv"]], ids=" ".join)
def test_a_closed_pipe_is_no_error(div, run, arguments):
    run.write(*[{"step": step, "loss": 1 / (step + 1)} for step in range(10_000)])
    with div.process(
        "telemetry", run.name, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        run.write({"step": 1})
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


def test_ctrl_c_ends_a_follow_without_a_word(div, filled):
    with div.process(
        "telemetry", filled.name, "loss", "-f", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        lines(process, 5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_follow_outlives_a_server_that_is_away_for_a_moment(div, filled, server):
    """Requests are reset before and after the server sees them; every point comes once."""
    with running_metrics_proxy(server.url) as proxy:
        div.env["O41_METRICS_HOST"] = proxy.url
        path = f"/api/v1/runs/{filled.name}/telemetry/points"
        proxy.fail(f"{path}?after=0&wait_s=20", "reset")
        proxy.fail(f"{path}?after=4&wait_s=20", "lose_reply")
        with div.process(
            "telemetry",
            filled.name,
            "--json",
            "-f",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            lines(process, 4)
            filled.write({"loss": 0.1})
            filled.end()
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, '{"seq": 5, "data": {"loss": 0.1}}\n')
    assert [line.rpartition("; ")[2] for line in err.splitlines()] == ["trying again"] * 2


def test_a_table_of_many_points_is_whole(div, run):
    for start in range(0, 30_000, 10_000):
        run.write(*[{"step": step, "loss": step / 7, "lr": 3e-5} for step in range(start, start + 10_000)])
    rows = list(csv.reader(div.ok("telemetry", run.name, "--csv").out.splitlines()))
    assert rows[0] == ["step", "loss", "lr"]
    assert [(int(step), float(loss), float(lr)) for step, loss, lr in rows[1:]] == [
        (step, step / 7, 3e-5) for step in range(30_000)
    ]


def test_nothing_is_coloured_in_a_pipe(div, filled):
    div.env |= {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    for arguments in (
        ["telemetry", filled.name],
        ["telemetry", filled.name, "loss"],
        ["list"],
        ["show", filled.name],
    ):
        assert "\x1b" not in div.apart(*arguments).out
