"""Shipped commands on a real stack: killed, cancelled, failing, and what is left of each."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.processes import is_running
from flows.scheduling import cancel, resume
from flows.secret_values import read_secrets, set_secret
from flows.server import connect
from tests.support.metrics_command import Command
from tests.support.metrics_server import running_server
from tests.support.prefect_stack import prefect_stack
from tests.support.shipped_runs import SCRIPT, ShippedRun, ShippedRuns
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.stack, pytest.mark.timeout(420)]

TOKEN = "hunter2-but-longer"
CHECKS = """
[[check]]
key = "f1"
op = ">="
threshold = 0.95

[[check]]
key = "recall"
op = ">"
threshold = 0.5
"""


class World:
    """What happens to each run; all of them at once, on one stack."""

    def __init__(self, runs: ShippedRuns) -> None:
        self.runs = runs

    def killed_again_and_again(self) -> ShippedRun:
        """Twice by SIGKILL, once with its worker and flow process: nobody is left there who could say so."""
        stack = self.runs.stack
        stack.deploy(pool="doomed", name="doomed")
        worker = stack.start_worker("doomed", pool="doomed")
        run = self.runs.start(
            "killed",
            "python",
            "work.py",
            "100",
            "0",
            *("15", "45", "75"),  # where the attempts that are killed stand, at the latest
            deployment="ship/doomed",
            checks=CHECKS,
            secrets=("TOKEN",),
        )
        os.kill(run.process(from_step=4), signal.SIGKILL)
        os.kill(run.process(from_step=30), signal.SIGKILL)
        run.process(from_step=60)
        for pid in (worker.pid, run.flow_process()):
            os.kill(pid, signal.SIGKILL)
        worker.wait()
        stack.start_worker("doomed-again", pool="doomed")
        run.until("Completed", "Failed", "Cancelled")
        return run

    def failing(self) -> ShippedRun:
        run = self.runs.start("failing", "python", "work.py", "2", "75")
        run.until("Completed", "Failed", "Cancelled")
        return run

    def cancelled(self) -> ShippedRun:
        run = self.runs.start(
            "cancelled",
            "bash",
            "-c",
            "trap '' TERM; sleep 86397 & python work.py 9999 0",
        )
        run.process(from_step=2)
        cancel(run.slug)
        run.until("Completed", "Failed", "Cancelled")
        return run

    def tried_again(self) -> ShippedRun:
        """Its own failure is retried as often as was asked; resumed by hand afterwards, it is done."""
        run = self.runs.start("tried", "bash", "-c", "echo try; test -e yes || exit 3", retries=1)
        run.until("Completed", "Failed", "Cancelled")
        first = run.page()
        assert (first["state"], first["exit_code"], first["attempt"]) == ("failed", 3, 2), run.told()
        (next(run.folder.glob("tree-*")) / "yes").touch()
        resume(run.slug)
        run.until("Completed")
        return run


SCENARIOS: dict[str, Callable[[World], ShippedRun]] = {
    "killed": World.killed_again_and_again,
    "cancelled": World.cancelled,
    "failing": World.failing,
    "tried": World.tried_again,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Iterator[ShippedRuns]:
    directory = tmp_path_factory.mktemp("shipped")
    (directory / "here.txt").write_text("the directory")
    with (
        running_server(tmp_path_factory.mktemp("metrics") / "data") as metrics,
        prefect_stack(O41_METRICS_HOST=metrics.url, O41_METRICS_API_KEY=metrics.key) as stack,
        temporary_settings({PREFECT_API_URL: stack.api}),
    ):
        set_secret("TOKEN", TOKEN)
        stack.deploy()
        stack.start_worker("w1")
        stack.start_rescue("--poll-s", "1")
        made = ShippedRuns(stack, metrics, directory)
        made.write(work=SCRIPT)
        yield made


@pytest.fixture(scope="module")
def ended(runs: ShippedRuns) -> Iterator[dict[str, Future[ShippedRun]]]:
    world = World(runs)

    def in_thread(scenario: Callable[[World], ShippedRun]) -> ShippedRun:
        with temporary_settings({PREFECT_API_URL: runs.stack.api}):
            return scenario(world)

    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        yield {name: pool.submit(in_thread, scenario) for name, scenario in SCENARIOS.items()}


@pytest.fixture
def run(request, ended) -> ShippedRun:
    found: ShippedRun = ended[request.param].result()
    return found


def of(name: str) -> Any:
    return pytest.mark.parametrize("run", [name], indirect=True)


def own_points(run: ShippedRun) -> list[dict[str, Any]]:
    """What the command wrote, as the rules keep it."""
    lines = map(json.loads, (run.folder / "telemetry.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "token"} for line in lines]


@of("killed")
def test_a_run_killed_twice_and_once_with_its_worker_is_one_run_with_all_its_telemetry(run):
    page = run.page()
    assert (page["state"], page["attempt"], page["exit_code"]) == ("done", 4, 0), run.told()
    points = run.points()
    assert [point["seq"] for point in points] == list(range(1, len(points) + 1))
    assert [point["data"] for point in points] == own_points(run)
    assert sorted({point["data"]["step"] for point in points}) == list(range(1, 101))
    marks = page["telemetry"]["attempts"]
    assert [mark["attempt"] for mark in marks] == [1, 2, 3, 4]
    attempts = [point["data"]["attempt"] for point in points]
    assert [attempts[mark["after_seq"]] for mark in marks] == [1, 2, 3, 4]
    states = {
        experiment["status"]
        for experiment in run.runs.get("experiments?slug=killed").json()["data"]["experiments"]
    }
    assert states == {"done"}


@of("killed")
def test_its_result_is_judged_once_it_has_ended(run):
    page = run.page()
    assert json.loads(page["result"]) == {"f1": 0.97, "steps": 100}
    first, second = page["verdicts"]
    assert (first["passed"], first["value"]) == (True, 0.97)
    assert (second["passed"], second["reason"]) == (False, "the result has no recall")


@of("killed")
def test_a_secret_is_nowhere_in_what_is_kept_and_served_of_a_run(run):
    served = "".join(run.served_log(number) for number in (1, 2, 3, 4))
    assert served.count("in the directory with ***\n") == 4  # each attempt has the secret
    kept = {path: path.read_bytes() for path in run.location.rglob("*") if path.is_file()}
    assert any(path.parts[-3] == "telemetry" for path in kept)
    logs = {path: path.read_bytes() for path in run.folder.glob("*.log")}
    assert len(logs) == 4
    assert [path for path, data in {**kept, **logs}.items() if TOKEN.encode() in data] == []
    assert TOKEN not in served + json.dumps(run.points()) + json.dumps(run.page())
    assert list(run.folder.glob("*.output-*")) == []


@of("killed")
def test_every_attempt_s_log_is_whole_also_that_of_the_one_whose_flow_process_died(run):
    for number in (1, 2, 3, 4):
        log = (run.folder / f"attempt-{number:04d}.log").read_text()
        assert log.startswith(f"attempt {number} of killed from ")
        steps = [int(line.split()[1]) for line in log.splitlines() if line.startswith("step ")]
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        served = run.served_log(number)
        assert log.startswith(served) if number == 3 else served == log


@of("failing")
def test_a_command_s_exit_code_is_the_run_s_and_prefect_shows_its_output_too(run):
    """75 of `sexpgpu run` is waited out; of a stranger's command it is a failure like any other."""
    view, page = run.view(), run.page()
    assert (view.state, page["state"], page["exit_code"], page["attempt"]) == ("Failed", "failed", 75, 1)
    assert page["reason"] == view.message == "exit code 75: step 2"
    with connect() as server:

        def shown() -> set[str]:
            return {
                line.message for line in server.logs(view.flow_run_id, since=datetime.fromtimestamp(0, UTC))
            }

        # Prefect keeps what was logged some seconds after the run's last state.
        wait_until(lambda: {"step 1", "step 2"} <= shown(), within_s=60, what=lambda: str(shown()))


@of("cancelled")
def test_a_cancelled_run_leaves_no_process_whatever_ignores_signals(run):
    assert run.page()["state"] == "cancelled", run.told()
    wait_until(lambda: run.runs.stack.pids("sleep", "86397") == [], within_s=40)
    ledger = run.ledger()
    assert ledger is not None
    trainer = ledger.attempts[-1].trainer
    assert trainer is not None
    assert not is_running(trainer.pid)


@of("tried")
def test_a_failure_is_retried_as_asked_and_the_run_can_be_resumed_afterwards(run):
    page = run.page()
    assert (page["state"], page["exit_code"], page["attempt"]) == ("done", 0, 3)
    assert page["verdicts"] is None


PRINTING = """
import json, os, sys, time
print("token", os.environ.get("TOKEN"), "lr", os.environ.get("LR"))
print("files", sorted(os.listdir()))
with open(os.environ["DIVERGENT_TELEMETRY_PATH"], "a") as file:
    print(json.dumps({"step": 1, "loss": 0.5}), file=file)
with open(os.environ["DIVERGENT_RESULT_PATH"], "w") as file:
    json.dump({"f1": 0.9}, file)
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("project")
    files = {
        ".gitignore": "*.bin\n",
        "checks.toml": '[[check]]\nkey = "f1"\nop = ">="\nthreshold = 0.8\n',
        "data.bin": "large",
        "telemetry.toml": '[[panel]]\ny = "loss"\n',
        "train.py": PRINTING,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def div(runs, project, monkeypatch, capfd, tmp_path) -> Command:
    """The command in the project, in this process, which has loaded Prefect already."""
    monkeypatch.chdir(project)
    return Command(monkeypatch, capfd, tmp_path, "div", **runs.stack.env())


def test_a_directory_becomes_a_run_that_is_followed_to_its_end(div):
    ran = div.ok("run", "-f", "--secret", "TOKEN", "--env", "LR=3e-4", "--", "python", "train.py", "0", "0")
    files = [".gitignore", "checks.toml", "telemetry.toml", "train.py"]
    assert ran.out == f"token *** lr 3e-4\nfiles {files}\n"
    assert re.search(r"^div: shipped: 4 files, [\d,]+ bytes, [0-9a-f]{12}$", ran.err, re.MULTILINE)
    assert "locations/.trees is a directory of this host: only a worker here can take" in ran.err
    assert re.search(r"^run +run-1$", ran.err, re.MULTILINE)
    assert re.search(r"^page +http://\S+/dashboard/experiments/\S+$", ran.err, re.MULTILINE)
    assert re.search(r"^prefect +http://\S+/runs/flow-run/\S+$", ran.err, re.MULTILINE)
    assert ran.err.splitlines()[-1].startswith("run-1: done")
    assert TOKEN not in ran.out + ran.err
    run = div.ok("show", "run-1", "--json").json
    assert [verdict["passed"] for verdict in run["verdicts"]] == [True]
    assert run["layout"]["panels"][0]["y"] == ["loss"]
    assert [file["path"] for file in div.ok("files", "run-1", "--json").json] == files
    assert div.ok("logs", "run-1").out == div.ok("logs", "-f", "run-1").out == ran.out


def test_following_exits_as_the_command_did_and_a_slug_runs_again(div, tmp_path):
    failed = div("run", "-f", "--slug", "again", "--", "python", "train.py", "7", "0")
    assert failed.code == 7, failed.err
    assert failed.err.splitlines()[-1].startswith("again: failed: exit code 7")
    layout = tmp_path / "other.toml"
    layout.write_text('x = "step"\n\n[[panel]]\ntitle = "Of another file"\ny = "loss"\nscale = "log"\n')
    options = ("-f", "--slug", "again", "--env", "LR=1", "--telemetry", layout)
    better = div.ok("run", *options, "--", "python", "train.py", "0", "0")
    assert "div: shipped before: 4 files" in better.err
    assert "lr 1" in better.out  # the new attempt's log alone
    run = div.ok("show", "again", "--json").json
    assert (run["state"], run["attempt"], run["telemetry"]["points"]) == ("done", 2, 2)
    both = div.ok("logs", "again")
    assert both.out == failed.out + better.out
    assert both.line == "-- attempt 2 --"
    layout.write_text('[[panel]]\ny = "step"\n')  # the run shows what it was launched with
    tab = httpx.get(f"{run['page']}/telemetry", trust_env=False).text
    assert re.findall(r"<figcaption[^>]*>\s*(.*?)\s*</figcaption>", tab) == ["Of another file"]
    assert [(panel["x"], panel["scale"]) for panel in run["layout"]["panels"]] == [("step", "log")]


def test_ctrl_c_ends_the_following_and_cancel_the_run(div):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = ("run", "-f", "--slug", "long", "--", "python", "train.py", "0", "600")
    with div.process(*command, **pipes) as following:
        assert following.stdout.readline().startswith("token")
        following.send_signal(signal.SIGINT)
        _, news = following.communicate(timeout=30)
    assert following.returncode == 130
    assert news.splitlines()[-1] == "long goes on: div logs -f long shows it again, div cancel long ends it"
    twice = div("run", "--slug", "long", "--", "true")
    assert twice.code == 2
    assert (
        twice.line == "div: long is live (Running): `div logs -f long` shows it, `div cancel long` ends it."
    )
    assert div.ok("cancel", "long").out == "long: cancelling\n"
    assert div("logs", "-f", "long").code == 130
    assert div.ok("show", "long", "--json").json["state"] == "cancelled"


def test_a_layout_that_cannot_be_read_refuses_the_run_before_anything_is_shipped(div, tmp_path):
    layout = '[[panel]]\ny = "a"\n\n[[panel]]\ny = "b"\nscael = "log"\n'
    (tmp_path / "layout").write_text(layout)
    refused = div("run", "--telemetry", tmp_path / "layout", "--", "true")
    assert refused.code == 2
    assert refused.line == (
        'div: the API refused the run: telemetry [[panel]] 2 has "scael", which is not one of title, x, y, '
        "scale, min, max, rule, wide"
    )


def test_secrets_are_set_listed_and_removed_and_a_run_asks_only_for_those_that_exist(div):
    div.ok("secret", "set", "OTHER_KEY", stdin="another-value\n")
    with connect() as server:
        assert read_secrets(server)["OTHER_KEY"] == "another-value"
    div.ok("secret", "set", "OTHER_KEY", stdin="two\r\nlines, newer\r\n")
    with connect() as server:
        assert read_secrets(server)["OTHER_KEY"] == "two\r\nlines, newer"
    listed = div.ok("secret", "list")
    assert re.search(r"^OTHER_KEY +20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ$", listed.out, re.MULTILINE)
    assert [one["name"] for one in div.ok("secret", "list", "--json").json] == ["OTHER_KEY", "TOKEN"]
    div.ok("secret", "remove", "OTHER_KEY")
    for again in (("secret", "remove", "OTHER_KEY"), ("run", "--secret", "OTHER_KEY", "--", "true")):
        refused = div(*again)
        assert refused.code == 2
        assert refused.line.startswith("div: there is no secret OTHER_KEY: ")


def test_a_schedule_is_a_deployment_whose_runs_name_themselves(div):
    command = ("--", "python", "train.py", "0", "0")
    made = div.ok("run", "--slug", "nightly", "--cron", "0 3 * * *", "--retries", "2", *command)
    assert re.search(r"^runs +nightly-<time>$", made.out, re.MULTILINE)
    with connect() as server:
        path = f"/deployments/{server.deployment_id('ship/nightly')}"
        found: dict[str, Any] = server._ask("GET", path, None, dict[str, Any])
        assert [one["schedule"]["cron"] for one in found["schedules"]] == ["0 3 * * *"]
        assert "slug" not in found["parameters"]["parameters"]
        server._send("POST", f"{path}/create_flow_run", {"state": {"type": "SCHEDULED"}})  # its time has come

    def its_run() -> dict[str, Any] | None:
        runs = div.ok("list", "--json").json
        return next(
            (run for run in runs if run["name"].startswith("nightly-") and run["state"] == "done"), None
        )

    run = wait_until(its_run, within_s=150)
    assert run is not None
    assert re.fullmatch(r"nightly-\d{8}T\d{6}Z", run["name"])
    shown = div.ok("show", run["id"], "--json").json
    assert [verdict["passed"] for verdict in shown["verdicts"]] == [True]
    assert shown["layout"]["panels"][0]["y"] == ["loss"]
    assert "train.py" in [file["path"] for file in div.ok("files", run["id"], "--json").json]


def test_a_cron_expression_that_is_none_is_refused_before_anything_is_shipped(div):
    bad = div("run", "--slug", "nightly", "--cron", "often", "--", "true")
    assert bad.code == 2
    assert "cron must be five fields" in bad.line
