"""Looking after one flow run until its last word: the same for an experiment and for a shipped command."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable  # noqa: TC003 - Prefect reads the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State  # noqa: TC002 - Prefect reads the annotations
from prefect.exceptions import Abort, TerminationSignal
from prefect.logging import get_run_logger
from prefect.states import Completed, Crashed, Failed

from flows.background import Every
from flows.endings import Action, Decision, Ended, Ending, Policy, describe
from flows.flow_runs import WAITING, FlowRun
from flows.hidden import Hidden
from flows.keeper import Keeper, now_ms
from flows.kept_telemetry import keep_telemetry
from flows.ledger import Ledger, Owner
from flows.processes import host_name, this_process
from flows.pulse import Upkeep
from flows.records import record_of
from flows.report import Report
from flows.run_page import RunPage
from flows.secret_values import read_secrets
from flows.server import connect
from flows.trainer import work_folder
from runtime.checkpoints.location import open_store
from runtime.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from flows.assignment import RunParameters
    from flows.processes import ProcessId
    from flows.standing import Standing
    from flows.trainer import HostTrainer
    from runtime.checkpoints.store import Store

__all__ = ["Care", "Kind", "Surroundings", "shown_as_task"]

REPORT_S, PUBLISH_S, PULSE_S, WATCH_S, PAGE_S = 1.0, 10.0, 15.0, 10.0, 0.5
LAST_WORDS_S, HURRIED_WORDS_S = 20.0, 3.0
REPLACED = "another flow process looks after it now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an attempt is run with, beside its parameters. `folder` is the run's on this host.

    `is_replaced` says whether another flow process has taken the run from this one.
    """

    folder: Path
    store: Store
    environment: Mapping[str, str]
    hidden: Hidden
    report: Report
    upkeep: Upkeep
    page: RunPage
    is_replaced: Callable[[], bool]


class Kind(Protocol):
    """What is looked after, as far as it differs. It exists so that two flows keep runs alive by one code."""

    def standing(self, parameters: Any, store: Store) -> Standing:
        """Return what says how far the run at this location is."""
        ...

    def trainer(self, parameters: Any, surroundings: Surroundings) -> HostTrainer:
        """Return what runs one attempt.

        Raises:
            Rejected: the run cannot be run here as it is asked for.
            Unavailable: something that it needs cannot be reached.
        """
        ...


@task(
    name="attempt", task_run_name="attempt-{number}", retries=0, persist_result=False, cache_policy=NO_CACHE
)
def attempt(number: int, run: Callable[[], Ended]) -> State[Any]:  # noqa: ARG001 - it names the task run
    """Run one attempt, so that Prefect shows how long it took and how it ended."""
    ended = run()
    if ended.ending is Ending.DONE:
        return Completed(message=describe(ended))
    kind = Crashed if ended.ending is Ending.INTERRUPTED else Failed
    return kind(name=ended.ending.capitalize(), message=describe(ended))


def shown_as_task(number: int, run: Callable[[], Ended]) -> Ended:
    """Run one attempt as a task of this flow; what it raises is raised here, too.

    Prefect makes a state of an exception and returns that.
    """
    ended: list[Ended] = []
    raised: list[Exception] = []

    def kept() -> Ended:
        try:
            ended.append(run())
        except Exception as error:
            raised.append(error)
            raise
        return ended[0]

    attempt(number, kept, return_state=True)
    if raised:
        raise raised[0]
    return ended[0]


class Care:
    """Everything that one flow process has in hand while it looks after one run.

    `run` is its flow run, `asked` are the ids of the states that this had since a person last scheduled it.
    """

    def __init__(self, parameters: RunParameters, run: FlowRun, asked: frozenset[str], kind: Kind) -> None:
        assert parameters.slug is not None
        assert parameters.location is not None
        assert run.state is not None
        self._slug, self._run, self._log = parameters.slug, run, get_run_logger()
        self._ended_elsewhere: str | None = None
        self._cancelling = 0
        self._leaving = threading.Lock()
        self._is_leaving = False
        folder = work_folder(parameters, os.environ)
        store = open_store(parameters.location, os.environ)
        owner = Owner(
            token=uuid.uuid4().hex,
            process=this_process(),
            flow_run_id=run.id,
            state_id=run.state.id,
            since_ms=now_ms(),
        )
        self._report = Report(
            slug=self._slug, flow_run_id=run.id, events=folder / "events.jsonl", log=self._log
        )
        self._upkeep = Upkeep(store, owner.token, progress=self._report.steps)
        self._page = RunPage.of(
            record_of(parameters),
            flow_run_id=run.id,
            environment=os.environ,
            say=self._report.remark,
            is_replaced=self._is_replaced,
        )
        self._surroundings = Surroundings(
            folder=folder,
            store=store,
            environment=os.environ,
            hidden=Hidden(_read_secrets, os.environ),
            report=self._report,
            upkeep=self._upkeep,
            page=self._page,
            is_replaced=self._is_replaced,
        )
        self._trainer = kind.trainer(parameters, self._surroundings)
        standing = kind.standing(parameters, store)
        self._report.shown_progress = standing.shown
        self._report.found_page = lambda: self._page.address
        self._keeper = Keeper(
            slug=self._slug,
            store=store,
            standing=standing,
            owner=owner,
            asked=asked,
            policy=Policy.of(parameters),
            notice_s=parameters.notice_s,
            train=self._as_task,
            say=self._say,
            show=self._show,
            stand=self._stand,
        )

    def keep(self) -> Decision:
        """Look after the run until its last word.

        Raises:
            Abort: somebody has ended the run, and no worker told this process; or another process has it.
        """
        try:
            with self._in_background():
                return self._keep()
        except TerminationSignal:
            if self._ended_elsewhere is None:
                raise
            if self._ended_elsewhere == "CANCELLING":
                with connect() as server:
                    cancelled = {"type": "CANCELLED"}
                    server.set_state(self._run.id, cancelled, message="Cancelled; its worker did not say so.")
            raise Abort(f"{self._slug} was ended elsewhere: {self._ended_elsewhere}") from None

    def _keep(self) -> Decision:
        try:
            decision = self._keeper.keep()
        except TerminationSignal:
            self._leave()
            if self._ended_elsewhere == REPLACED:
                raise  # what is said of the run is the other's
            self._report.say("stopped by a signal")
            self._page.stopped(cancelled=self._is_cancelled(), store=self._surroundings.store)
            raise
        if decision.action is Action.ABORT:
            self._report.say(decision.reason)
        else:
            self._report.status = decision.reason  # its last state says it
            self._page.ended(decision, self._report.ledger, self._surroundings.store)
        return decision

    def _as_task(self, number: int, started: Callable[[ProcessId | None], None]) -> Ended:
        return shown_as_task(number, lambda: self._trainer(number, started))

    def _say(self, text: str) -> None:
        self._report.say(text)
        self._page.retrying(text)

    def _show(self, ledger: Ledger) -> None:
        self._report.ledger = ledger

    def _stand(self, waiting: str | None) -> None:
        """Make the run's state say that it waits, and why; unset: that it goes on."""
        self._page.stands(waiting)
        # What somebody asks for in this moment wins: Prefect lets nothing leave Cancelling but for Cancelled.
        with contextlib.suppress(RunError), connect(retries=0) as server:
            now = server.run(self._run.id).state
            if now is not None and now.type == "RUNNING":
                state = {"type": "RUNNING", "name": WAITING if waiting else "Running"}
                server.set_state(self._run.id, state, message=waiting or "")

    def _is_cancelled(self) -> bool:
        """Say whether the signal that ends this process is a cancellation; unsure is no."""
        if self._ended_elsewhere is not None:
            return self._ended_elsewhere in ("CANCELLING", "CANCELLED")
        with contextlib.suppress(RunError), connect(retries=0) as server:
            state = server.run(self._run.id).state
            return state is not None and state.type in ("CANCELLING", "CANCELLED")
        return False

    @contextlib.contextmanager
    def _in_background(self) -> Iterator[None]:
        threads = [
            Every(REPORT_S, self._report.read, name="log"),
            Every(PUBLISH_S, self._report.publish, name="artifacts"),
            Every(PULSE_S, self._upkeep.tick, name="pulse"),
            Every(WATCH_S, self._watch, name="state"),
            Every(WATCH_S, self._watch_owner, name="owner"),
            Every(PAGE_S, self._page.tick, name="page"),
        ]
        for thread in threads:
            thread.start()
        last_words_s = LAST_WORDS_S
        try:
            yield
        except TerminationSignal:
            last_words_s = HURRIED_WORDS_S
            raise
        finally:
            self._leave()
            self._upkeep.close()
            for thread in threads:
                thread.ask_to_stop()
            self._keep_telemetry(timeout_s=HURRIED_WORDS_S if last_words_s == HURRIED_WORDS_S else None)
            deadline = time.monotonic() + last_words_s
            for thread in threads:
                thread.stop(timeout_s=max(0.0, deadline - time.monotonic()))
            # The very last: who sees there that the run is over may schedule it again at once.
            self._page.close(timeout_s=max(1.0, deadline - time.monotonic()))

    def _keep_telemetry(self, *, timeout_s: float | None) -> None:
        """Store the telemetry file; a signal leaves a store that does not answer no time to hold us up."""
        thread = threading.Thread(target=self._store_telemetry, name="kept telemetry", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            self._report.remark(f"the telemetry file is on {host_name()} only: its location takes too long")

    def _store_telemetry(self) -> None:
        trainer = self._trainer
        try:
            keep_telemetry(
                self._surroundings.store, trainer.telemetry, host=host_name(), secrets=trainer.hidden.values()
            )
        except (RunError, OSError) as error:
            self._report.remark(f"the telemetry file is on {host_name()} only: {error}")

    def _watch(self) -> None:
        """Notice a cancellation that no worker delivers any more: ours may be dead."""
        with connect(retries=0) as server:
            state = server.run(self._run.id).state
            if state is None or self._ended_elsewhere is not None:
                return
            self._cancelling = self._cancelling + 1 if state.type == "CANCELLING" else 0
            if state.type not in ("CANCELLED", "FAILED", "COMPLETED") and self._cancelling < 2:
                return
        self._stop(state.type, f"{self._slug} is {state.name} and its worker did not say so: stopping")

    def _watch_owner(self) -> None:
        """Notice that this process was taken for dead: its host was frozen, or cut off, and another goes on.

        A command would run beside the new one to its end, and our signs of life would hide that one's death.
        """
        if self._is_replaced():
            self._stop(REPLACED, f"another flow process looks after {self._slug} now: stopping")

    def _is_replaced(self) -> bool:
        return self._keeper.is_replaced()

    def _leave(self) -> None:
        """Look no more for a reason to end: the last look of a thread would break our last words off."""
        with self._leaving:
            self._is_leaving = True

    def _stop(self, why: str, told: str) -> None:
        with self._leaving:
            if self._is_leaving:
                return
            self._is_leaving, self._ended_elsewhere = True, why
        self._log.warning("%s", told)
        os.kill(os.getpid(), signal.SIGTERM)


def _read_secrets() -> dict[str, str]:
    with connect(retries=3) as server:
        return read_secrets(server)
