"""div list, div show and div files with a real server."""

import json
import uuid

import pytest

from flows.check import check_folder
from runtime.errors import Rejected
from tests.support.telemetry_runs import RunAtServer

DIGEST = "ab" * 32
CHECKS = (
    '[[check]]\nkey = "f1"\nop = ">="\nthreshold = 0.9\n\n[[check]]\nkey = "loss"\nop = "<"\nthreshold = 1\n'
)


def fields_of(said):
    """The names and values of a printed thing."""
    lines = said.out.splitlines()
    start = len(lines[0]) - len(lines[0].split(None, 1)[1])
    return {line[:start].strip(): line[start:] for line in lines}


def test_a_list_has_a_row_for_each_run_the_one_made_last_first(div, client, name):
    first = RunAtServer(client, name, command=["python", "a b.py"])
    second = RunAtServer(client, f"{name}-2")
    second.write({"loss": 1})
    second.end("failed")
    rows = div.ok("list", "--limit", "2").out.splitlines()
    assert rows[0].split() == ["RUN", "STATE", "ATTEMPT", "POINTS", "CREATED", "ENDED", "COMMAND"]
    assert rows[1].split()[:4] == [second.name, "failed", "1", "1"]
    assert rows[2].split()[:4] == [first.name, "scheduled", "0", "0"]
    assert rows[2].endswith("python 'a b.py'")
    found = div.ok("list", "--limit", "2", "--json").json
    assert [run["name"] for run in found] == [second.name, first.name]


def test_a_list_longer_than_a_page_goes_on(div, client, name, monkeypatch):
    made = [RunAtServer(client, f"{name}-{number}").name for number in range(5)]
    monkeypatch.setattr("flows.div.show._PAGE", 2)
    assert [row[0] for row in div.ok("list", "--limit", "5").rows] == made[::-1]


def test_show_says_how_a_run_goes_and_how_its_checks_judge_it(div, client, name):
    run = RunAtServer(client, name, checks=CHECKS, command=["python", "train.py"], meta={"lr": 0.1})
    shown = fields_of(div.ok("show", name))
    assert (shown["run"], shown["state"], shown["command"]) == (name, "scheduled", "python train.py")
    assert shown["check 1"] == "f1 >= 0.9, judged when the run ends"
    run.says(state="running")
    run.write({"step": 1, "loss": 2.5}, {}, dropped={"not_json": 2})
    run.says(state="done", exit_code=0, result='{\n  "f1": 0.97\n}\n')
    shown = fields_of(div.ok("show", name))
    assert shown["state"] == "done"
    assert (shown["attempt"], shown["exit code"]) == ("1", "0")
    assert (shown["points"], shown["keys"], shown["dropped"]) == ("2", "step loss", "2")
    assert shown["result"] == '{"f1": 0.97}'
    assert shown["check 1"] == "passed: f1 >= 0.9, got 0.97"
    assert shown["check 2"] == "failed: loss < 1: the result has no loss"
    assert shown["attempt 1"].startswith("from point 1, 20")
    assert shown["page"].endswith(
        f"/dashboard/experiments/{div.ok('show', name, '--json').json['experiment_id']}"
    )


def test_a_result_that_is_no_json_is_shown_on_one_line(div, run):
    run.says(state="failed", reason="exit code 1", exit_code=1, result="no\njson\x1b[2J")
    said = div.ok("show", run.name)
    shown = fields_of(said)
    assert (shown["state"], shown["reason"], shown["exit code"]) == ("failed", "exit code 1", "1")
    assert shown["result"] == r"no\njson\x1b[2J"


def test_files_lists_what_was_shipped(div, client, name):
    shipped = [
        {"path": "train.py", "size_bytes": 12, "blake3": DIGEST},
        {"path": "a/b c.txt", "size_bytes": 0, "blake3": DIGEST},
    ]
    RunAtServer(client, name, tree=DIGEST, files=shipped)
    assert div.ok("files", name).out.splitlines() == [
        f"PATH       BYTES  {'BLAKE3'}",
        f"train.py   12     {DIGEST}",
        f"a/b c.txt  0      {DIGEST}",
    ]
    assert div.ok("files", name, "--json").json == shipped


def test_files_of_a_run_for_which_nothing_was_shipped_says_so(div, run):
    said = div.ok("files", run.name)
    assert (said.out, said.line) == ("", f"files: nothing was shipped for {run.name}")
    assert div.ok("files", run.name, "--json").json == []


def test_a_run_that_is_not_there_is_one_line_and_exit_2(div):
    missing = uuid.uuid4().hex
    for command in ("show", "files"):
        refused = div(command, missing)
        assert (refused.code, refused.out) == (2, "")
        assert refused.line == f"div: there is no run '{missing}': div list shows those that there are"


def test_standard_output_is_nothing_but_data(div, run):
    run.write({"loss": 1}, dropped={"too_long": 4})
    for arguments in (["list", "--limit", "1"], ["show", run.name]):
        said = div.ok(*arguments, "--json")
        assert said.err == ""
        json.loads(said.out)


def test_a_folder_is_looked_for_before_an_experiment_is_scheduled(server, monkeypatch):
    monkeypatch.setenv("O41_METRICS_HOST", server.url)
    monkeypatch.setenv("O41_METRICS_API_KEY", server.key)
    check_folder(None)
    check_folder("/")
    with pytest.raises(Rejected, match=r'no folder has the path "/nowhere"; syvain-metrics folder create'):
        check_folder("/nowhere")
    # Another Metrics may be in a worker's reach.
    monkeypatch.setenv("O41_METRICS_HOST", "http://127.0.0.1:9")
    check_folder("/nowhere")
