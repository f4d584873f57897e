"""What can happen to a scheduled run, done to real processes, and what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.flow_runs import FlowRun, State
from flows.ledger import Ledger, LedgerFile
from flows.parameters import TrainParameters
from flows.processes import is_alive, is_running
from flows.scheduling import RunView, cancel, find_run, resume, schedule
from flows.server import Server, connect
from runtime.checkpoints.location import open_location
from runtime.errors import Rejected
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.checkpoints.record import RunRecord
    from tests.support.prefect_stack import PrefectStack

__all__ = ["Outcome", "Run", "Scenarios"]

STEPS = 40
SCHEDULE = "nightly"
WORKER_ENDS_S = 60.0
PATIENCE_S = 240

EXPERIMENT = """
    import atexit
    import signal
    import subprocess
    import time
    from dataclasses import dataclass
    from pathlib import Path

    import torch
    from torch import nn

    from sexpgpu import Batch, Experiment, Stage


    @dataclass(frozen=True)
    class Knobs:
        steps: int = 40
        pause_s: float = 0.1
        fail_at: int = -1
        deaf: bool = False


    def wait_while(file, times, pause_s):
        for _ in range(times):
            if not Path(file).exists():
                break
            time.sleep(pause_s)


    atexit.register(wait_while, "stay", 2400, 0.05)


    class Numbers:
        def batch(self, index):
            generator = torch.Generator().manual_seed(index)
            x = torch.randn(8, 4, generator=generator)
            return Batch((x, x.sum(1, keepdim=True), index), num_examples=8)


    def experiment(knobs: Knobs) -> Experiment:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        if knobs.deaf:
            subprocess.Popen(["bash", "-c", "trap 'touch asked; exit' TERM; sleep 86398 & wait"])
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)  # a grandchild inherits it
            subprocess.Popen(["sleep", "86399"])

        def loss(model, batch):
            x, y, index = batch
            if index == knobs.fail_at:
                raise ValueError("a batch that cannot be")
            time.sleep(knobs.pause_s)
            if index > 5:
                wait_while("slow", 30, knobs.pause_s)
            return ((model(x) - y) ** 2).mean()

        return Experiment(
            model=model,
            loss=loss,
            optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
            stages=[Stage("all", Numbers())],
            steps=knobs.steps,
            checkpoint_every=5,
        )
"""


T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What came of a run. `rescued`: rescue scheduled it again. `acted_after_s`: from the deed to that."""

    state: str
    message: str | None
    attempts: int
    rescued: bool
    restarted: bool
    final_weights: dict[str, Any] | None
    left_processes: list[int]
    facts: dict[str, Any]


@dataclass
class Run:
    """One scheduled run, looked at from outside."""

    stack: PrefectStack
    parameters: TrainParameters
    deployment: str = "train/train"

    @property
    def slug(self) -> str:
        assert self.parameters.slug is not None
        return self.parameters.slug

    @property
    def location(self) -> str:
        return str(self.stack.home / "locations" / self.slug)

    @property
    def folder(self) -> Path:
        """Where its trainers work."""
        return self.stack.home / "runs" / self.slug

    def start(self) -> RunView:
        return schedule(self.parameters, deployment=self.deployment)

    @contextlib.contextmanager
    def told_to(self, what: Literal["be slow", "stay"]) -> Iterator[None]:
        """Be thirty times as slow after the first checkpoint, or stay when all is done: for the context.

        So what is done to a living trainer finds one, however late it comes on a busy machine.
        """
        file = self.folder / what.removeprefix("be ")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    def view(self) -> RunView:
        return find_run(self.slug)

    def states(self) -> list[State]:
        with connect() as server:
            return server.states(self.view().flow_run_id)

    def ledger(self) -> Ledger | None:
        return LedgerFile(open_location(self.location, {}).store, self.slug).read()

    def record(self) -> RunRecord | None:
        return open_location(self.location, {}).record()

    def flow_process(self) -> int:
        """The living process that looks after the run."""

        def look() -> int | None:
            ledger = self.ledger()
            owner = ledger.owner if ledger is not None else None
            return owner.process.pid if owner is not None and is_alive(owner.process) else None

        return wait_until(look, within_s=PATIENCE_S, what=self.told)  # type: ignore[return-value] # truthy, so a number

    def trainer(self) -> int:
        """The living trainer, once there is a checkpoint."""
        return wait_until(self.living_trainer, within_s=PATIENCE_S, what=self.told)  # type: ignore[return-value] # as above

    def living_trainer(self) -> int | None:
        """The trainer, if it lives now and there is a checkpoint."""
        record, ledger = self.record(), self.ledger()
        if record is None or record.newest is None or ledger is None:
            return None
        trainer = ledger.attempts[-1].trainer
        return trainer.pid if trainer is not None and is_alive(trainer) else None

    def artifacts(self) -> dict[str, Any]:
        """What its artifacts show, by key, once all three are there and say that it is done."""
        body = {"artifacts": {"flow_run_id": {"any_": [self.view().flow_run_id]}}}
        with connect() as server:
            rows = msgspec.json.decode(server._send("POST", "/artifacts/filter", body).content)
        shown = {row["key"]: row["data"] for row in rows}
        return shown if len(shown) == 3 and shown.get(f"{self.slug}-progress") == 100 else {}

    def task_runs(self) -> dict[str, str]:
        """The types of the states of its attempts' task runs, by name, once the last is done."""
        body = {"flow_runs": {"id": {"any_": [self.view().flow_run_id]}}}
        with connect() as server:
            rows = msgspec.json.decode(server._send("POST", "/task_runs/filter", body).content)
        found = {row["name"]: row["state_type"] for row in rows}
        return found if "COMPLETED" in found.values() else {}

    def until(self, *states: str) -> RunView:
        with connect() as server:  # one connection: making one costs more than a dozen questions

            def look() -> bool:
                state = server.runs(slug=self.slug, limit=1)[0].state
                return state is not None and state.name in states

            wait_until(look, within_s=PATIENCE_S, what=self.told, poll_s=0.5)
        return self.view()

    def until_final(self) -> RunView:
        return self.until("Completed", "Failed", "Cancelled")

    def end_flow(self, flow_process: int) -> None:
        """End it by SIGTERM; it has stopped its trainer when it is gone."""
        os.kill(flow_process, signal.SIGTERM)
        wait_until(lambda: not is_running(flow_process), within_s=PATIENCE_S, what=self.told)

    def told(self) -> str:
        """Everything that helps to understand why a run did not get where it should."""
        logs = [path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log")]
        ledger = self.ledger()
        return "\n".join([self.slug, str(self.view()), str(ledger), *logs, self.stack.log("rescue")[-2000:]])

    def outcome(self, **facts: Any) -> Outcome:
        view, states, ledger = self.until_final(), self.states(), self.ledger()
        gone = lambda: not self.stack.pids(f"--slug={self.slug}")  # noqa: E731 - one expression
        with contextlib.suppress(AssertionError):
            wait_until(gone, within_s=30)
        found = open_location(self.location, {}).find(slug=self.slug) if self.record() is not None else None
        return Outcome(
            state=view.state,
            message=view.message,
            attempts=len(ledger.attempts) if ledger is not None else 0,
            rescued=any((state.message or "").startswith("Rescued:") for state in states),
            restarted=sum(state.type == "SCHEDULED" for state in states) > 1,
            final_weights=dict(found.checkpoint.tensors) if found is not None and found.checkpoint else None,
            left_processes=self.stack.pids(f"--slug={self.slug}"),
            facts=facts,
        )


class Scenarios:
    """Each public method is one: it makes a run, does something to it and returns what came of it."""

    def __init__(self, stack: PrefectStack) -> None:
        self.stack = stack
        self.experiment = stack.home / "tiny.py"
        self.experiment.write_text(dedent(EXPERIMENT))

    def run(self, slug: str, *, deployment: str = "train/train", **changes: Any) -> Run:
        parameters = TrainParameters(experiment=str(self.experiment), slug=slug, notice_s=8, device="cpu")
        return Run(self.stack, replace(parameters, **changes), deployment)

    def nothing(self) -> Outcome:
        run = self.run("nothing")
        run.start()
        outcome = run.outcome()
        return replace(outcome, facts={"artifacts": wait_until(run.artifacts, within_s=60, what=run.told)})

    def kill_trainer(self) -> Outcome:
        run = self.run("kill-trainer")
        with run.told_to("be slow"):
            run.start()
            os.kill(run.trainer(), signal.SIGKILL)
        return run.outcome()

    def sigterm_trainer(self) -> Outcome:
        run = self.run("sigterm-trainer")
        with run.told_to("be slow"):
            run.start()
            os.kill(run.trainer(), signal.SIGTERM)
        return run.outcome()

    def kill_flow(self) -> Outcome:
        run = self.run("kill-flow")
        with run.told_to("be slow"):
            run.start()
            run.trainer()
            os.kill(run.flow_process(), signal.SIGKILL)
        outcome = run.outcome()
        return replace(outcome, facts={"task_runs": wait_until(run.task_runs, within_s=60, what=run.told)})

    def sigterm_flow(self) -> Outcome:
        run = self.run("sigterm-flow")
        with run.told_to("be slow"):
            run.start()
            run.trainer()
            run.end_flow(run.flow_process())
        return run.outcome()

    def sigterm_flow_while_it_resumes(self) -> Outcome:
        """The signal comes when an attempt has just ended and the next one is not yet there, or only just."""
        run = self.run("sigterm-resuming")

        def ended() -> bool:
            ledger = run.ledger()
            return ledger is not None and ledger.attempts[0].ended_ms is not None

        with run.told_to("be slow"):
            run.start()
            trainer, flow_process = run.trainer(), run.flow_process()
            os.kill(trainer, signal.SIGKILL)
            wait_until(ended, within_s=PATIENCE_S, poll_s=0.001, what=run.told)
            run.end_flow(flow_process)
        return run.outcome()

    def sigterm_flow_after_done(self) -> Outcome:
        run = self.run("sigterm-after-done", knobs={"pause_s": 0.0})

        def done() -> bool:
            record = run.record()
            return record is not None and record.ended is not None and record.ended.status == "done"

        with run.told_to("stay"):
            run.start()
            wait_until(done, within_s=PATIENCE_S, poll_s=0.01, what=run.told)
            os.kill(run.flow_process(), signal.SIGTERM)
        outcome = run.outcome()
        record = run.record()
        return replace(outcome, facts={"recorded_attempts": record.attempt.number if record else None})

    def kill_worker(self) -> Outcome:
        run = self.run("kill-worker", deployment="train/first")
        with self.pool("first") as worker:
            with run.told_to("be slow"):
                run.start()
                run.trainer()
                worker.kill()
                worker.wait()
            return run.outcome()

    def sigterm_worker(self) -> Outcome:
        run = self.run("sigterm-worker", deployment="train/second")
        with self.pool("second") as worker:
            with run.told_to("be slow"):
                run.start()
                run.trainer()
                worker.send_signal(signal.SIGTERM)
                try:
                    worker.wait(WORKER_ENDS_S)
                except subprocess.TimeoutExpired:
                    worker.kill()  # Prefect's worker answers SIGTERM with a SIGINT to itself; it hung on that
                    worker.wait()
            self.stack.start_worker("second-again", pool="second")
            return run.outcome()

    def cancel_after_worker_died(self) -> Outcome:
        run = self.run("cancel-workerless", deployment="train/third", knobs={"steps": 5000})
        with self.pool("third") as worker:
            run.start()
            run.trainer()
            worker.kill()
            worker.wait()
            cancel(run.slug)
            return run.outcome()

    def kill_all_and_restart_server(self) -> tuple[Outcome, Outcome]:
        """Do it last: it takes the server from everybody. Also what came of a run that was only near."""
        run, near = self.run("kill-all", deployment="train/fourth"), self.run("near")
        with self.pool("fourth") as worker:
            with near.told_to("be slow"), run.told_to("be slow"):
                near.start()
                near.trainer()
                run.start()
                trainer, flow_process = run.trainer(), run.flow_process()
                for pid in (worker.pid, flow_process, trainer):
                    os.kill(pid, signal.SIGKILL)
                worker.wait()
                self.stack.kill_server()
                died = time.time()
                assert near.living_trainer()
                self.stack.start_server()
            self.stack.start_worker("fourth-again", pool="fourth")
            outcome = run.outcome()
            again = next(state for state in run.states() if (state.message or "").startswith("Rescued:"))
            facts = {"rescued_after_s": again.timestamp.timestamp() - died}
            return replace(outcome, facts=facts), near.outcome()

    def cancelled(self) -> Outcome:
        run = self.run("cancelled")
        with run.told_to("be slow"):
            run.start()
            run.trainer()
            cancel(run.slug)
            run.until("Cancelled")
        outcome = run.outcome()
        self.look_twice()
        assert run.view().state == "Cancelled"
        return outcome

    def cancelled_and_deaf(self) -> Outcome:
        run = self.run("deaf", knobs={"deaf": True, "steps": 5000}, notice_s=3)
        run.start()
        run.trainer()
        grandchildren = self.stack.pids("sleep", "86399")
        cancel(run.slug)
        asked = run.folder / "asked"  # how soon the worker passes that on is Prefect's affair
        wait_until(asked.exists, within_s=PATIENCE_S, what=run.told)
        wait_until(lambda: not any(map(is_running, grandchildren)), within_s=PATIENCE_S, what=run.told)
        took_s = time.time() - asked.stat().st_mtime
        outcome = run.outcome()
        self.look_twice()
        assert run.view().state == "Cancelled"
        left = self.stack.pids("sleep", "86399")
        return replace(
            outcome, facts={"took_s": took_s, "grandchildren": grandchildren, "grandchildren_left": left}
        )

    def cancelled_and_resumed(self) -> Outcome:
        run = self.run("cancelled-resumed")
        with run.told_to("be slow"):
            run.start()
            run.trainer()
            cancel(run.slug)
            run.until("Cancelled")
        record = run.record()
        assert record is not None
        assert record.newest is not None
        kept = record.newest.step
        resume(run.slug)
        outcome = run.outcome()
        ledger = run.ledger()
        assert ledger is not None
        facts = {"kept_step": kept, "resumed_step": ledger.attempts[-1].start_step}
        return replace(outcome, facts=facts)

    def scheduled_again(self) -> Outcome:
        run = self.run("again", knobs={"pause_s": 0.0})
        run.start()
        run.until("Completed")
        before = run.record()
        refused = False
        run.parameters = replace(run.parameters, failures=1)
        run.start()
        try:
            run.start()
        except Rejected as error:
            refused = run.slug in str(error)
        outcome = run.outcome()
        after = run.record()
        assert before is not None
        assert after is not None
        facts = {"refused_while_live": refused, "same_checkpoints": before.checkpoints == after.checkpoints}
        with connect() as server:
            parameters = server.runs(slug=run.slug)[0].train
        return replace(outcome, facts={**facts, "failures": parameters.get("failures")})

    def scheduled_twice_at_once(self) -> Outcome:
        run = self.run("twice", knobs={"pause_s": 0.0})

        def try_it() -> str:
            with temporary_settings({PREFECT_API_URL: self.stack.api}):
                try:
                    return run.start().flow_run_id
                except Rejected as error:
                    return str(error)

        with ThreadPoolExecutor(4) as pool:
            answers = [future.result() for future in [pool.submit(try_it) for _ in range(4)]]
        outcome = run.outcome()
        with connect() as server:
            runs = len(server.runs(slug=run.slug))
        return replace(outcome, facts={"answers": answers, "flow_runs": runs})

    def newer_by_hand(self) -> Outcome:
        run = self.run("by-hand")
        sexpgpu = Path(sys.executable).with_name("sexpgpu")
        flags = [f"--slug={run.slug}", f"--location={run.location}", "--device=cpu"]
        elsewhere = self.stack.home / "by-hand"
        elsewhere.mkdir()
        with run.told_to("be slow"):
            run.start()
            first = run.trainer()
            by_hand = subprocess.Popen(
                [sexpgpu, "run", self.experiment, *flags],
                cwd=elsewhere,
                env=self.stack.env(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                code = by_hand.wait(PATIENCE_S)
                wait_until(lambda: not is_running(first), within_s=PATIENCE_S, what=run.told)
            finally:
                by_hand.kill()
                by_hand.wait()
        outcome = run.outcome()
        record = run.record()
        facts = {
            "by_hand_exit": code,
            "recorded_attempts": record.attempt.number if record else None,
            "first_code": run.ledger().attempts[0].code,  # type: ignore[union-attr] # there is one
        }
        return replace(outcome, facts=facts)

    def fails_twice(self) -> Outcome:
        run = self.run("fails", knobs={"pause_s": 0.0, "fail_at": 7})
        run.start()
        return run.outcome()

    def mistaken(self) -> Outcome:
        run = self.run("mistaken", knobs={"no_such_knob": 1})
        run.start()
        return run.outcome()

    def file_missing_for_a_while(self) -> Outcome:
        late = self.stack.home / "late.py"
        run = self.run("missing", experiment=str(late), knobs={"pause_s": 0.0})
        run.start()

        def waits() -> bool:
            ledger = run.ledger()
            return ledger is not None and bool(ledger.attempts) and ledger.attempts[-1].code == 75

        wait_until(waits, within_s=PATIENCE_S, what=run.told)
        with connect() as server:
            flow_run_id = run.view().flow_run_id

            def said() -> list[str]:
                since = datetime.fromtimestamp(0, UTC)
                lines = [line.message for line in server.logs(flow_run_id, since=since)]
                return [line for line in lines if "next try in" in line]

            lines = wait_until(said, within_s=60, what=run.told)
        whole = self.stack.home / "late.whole"
        whole.write_text(self.experiment.read_text())
        whole.rename(late)  # an attempt may look at any moment
        outcome = run.outcome()
        return replace(outcome, facts={"said": lines[0], "tries": run.ledger().attempts[0].tries})  # type: ignore[union-attr] # there is one

    def scheduled_for_a_time(self) -> Outcome:
        """As a schedule does it: no slug, only a time; and then that time once more."""
        with connect() as server:
            slug = f"{SCHEDULE}-20250101T030000Z"
            self.stack.deploy(name=SCHEDULE)
            first = self.create(server, SCHEDULE, [], self.scheduled_parameters())
            run = self.run(slug)
            wait_until(lambda: server.run(first.id).state.final, within_s=PATIENCE_S, poll_s=0.5)  # type: ignore[union-attr] # it has one
            named = server.run(first.id)
            second = self.create(server, SCHEDULE, [], self.scheduled_parameters())
            wait_until(lambda: server.run(second.id).state.final, within_s=PATIENCE_S, poll_s=0.5)  # type: ignore[union-attr] # as above
        outcome = run.outcome()
        return replace(outcome, facts={"name": named.name, "tags": named.tags, "kept": named.train["slug"]})

    def on_another_hosts_disk(self) -> dict[str, Any]:
        """A worker of the wrong host gets a run whose checkpoints are on another's disk."""
        run = self.run("elsewhere", location=str(self.stack.home / "locations" / "elsewhere"))
        with connect() as server:
            tags = ["slug:elsewhere", "host:another-host"]
            created = self.create(server, "train", tags, run.parameters.to_json())

            def handed_back() -> State | None:
                state = server.run(created.id).state
                return state if state is not None and state.name == "AwaitingRetry" else None

            state = wait_until(handed_back, within_s=PATIENCE_S, what=lambda: str(server.states(created.id)))
            cancel(run.slug)
            return {"message": state.message, "started": run.ledger() is not None, "then": run.view().state}  # type: ignore[union-attr] # truthy

    def scheduled_parameters(self) -> dict[str, Any]:
        given = self.run("unused", knobs={"pause_s": 0.0}).parameters.to_json()
        del given["slug"]
        return given

    def create(self, server: Server, deployment: str, tags: list[str], values: dict[str, Any]) -> FlowRun:
        body = {
            "tags": tags,
            "parameters": {"parameters": values},
            "state": {"type": "SCHEDULED", "state_details": {"scheduled_time": "2025-01-01T03:00:00+00:00"}},
        }
        path = f"/deployments/{server.deployment_id(f'train/{deployment}')}/create_flow_run"
        if tags:
            del body["state"]
        return msgspec.json.decode(server._send("POST", path, body).content, type=FlowRun)

    def look_twice(self) -> None:
        """Let rescue look at everything twice."""
        time.sleep(11)

    @contextlib.contextmanager
    def pool(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker pool of its own, for what would hurt the other scenarios."""
        self.stack.deploy(pool=name, name=name)
        try:
            yield self.stack.start_worker(name, pool=name)
        finally:
            self.stack.stop_workers(pool=name)


def in_thread(stack: PrefectStack, scenario: Callable[[], T]) -> T:
    """Run a scenario with the settings of `stack`, which are the calling thread's own."""
    with temporary_settings({PREFECT_API_URL: stack.api}):
        return scenario()
