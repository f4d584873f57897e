"""`Rescuer`: has runs scheduled again after which nobody looks any more, or reports the end that they had."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from flows.assignment import assigned_host, is_local, parameters_of
from flows.endings import Action, Decision
from flows.flow_runs import AWAITING_RETRY, since_asked
from flows.keeper import now_ms
from flows.ledger import LedgerFile, Rescue
from flows.life import Life, TellsOfRuns
from flows.processes import host_name, is_alive
from flows.records import record_of
from flows.run_page import last_word, result_of
from runtime.checkpoints.location import open_store
from runtime.errors import RunError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flows.flow_runs import FlowRun, State
    from flows.ledger import Ledger
    from flows.life import Patience
    from flows.processes import ProcessId
    from flows.run_writer import Record
    from runtime.checkpoints.store import Store

__all__ = ["IN_VAIN", "Rescuer", "Watched"]

logger = logging.getLogger(__name__)

WATCHED = ("CRASHED", "RUNNING", "PENDING", "CANCELLING")

PAGE_STATES = {"SCHEDULED": "retrying", "COMPLETED": "done", "FAILED": "failed", "CANCELLED": "cancelled"}
"""What the run's page in Metrics calls what became of it."""

CLAIM_S = 60.0
IN_VAIN = 5


class Watched(TellsOfRuns, Protocol):
    """What rescue asks of a Prefect server. It exists so that nights of trouble pass in a test's second."""

    def runs(self, *, states: Sequence[str]) -> list[FlowRun]:
        """See `Server.runs`."""
        ...

    def run(self, flow_run_id: str) -> FlowRun:
        """See `Server.run`."""
        ...

    def set_state(
        self, flow_run_id: str, state: Mapping[str, Any], *, message: str, force: bool = False
    ) -> State | None:
        """See `Server.set_state`."""
        ...

    def end_task_runs(self, flow_run_id: str, *, message: str) -> None:
        """See `Server.end_task_runs`."""
        ...


@dataclass(frozen=True, slots=True)
class _Found:
    """A run that needs us: `why` is said on it. `asked` are its states since a person last scheduled it."""

    run: FlowRun
    why: str
    asked: Sequence[State]
    store: Store | None
    ledger: Ledger | None


class _Taken(Exception):
    """Another rescuer is at it."""


class Rescuer:
    """Looks at every run of `train` and `ship` that is not at rest, and acts on those that died."""

    def __init__(
        self,
        patience: Patience,
        environment: Mapping[str, str],
        *,
        host: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        alive: Callable[[ProcessId], bool | None] = is_alive,
        open_store: Callable[[str, Mapping[str, str]], Store] = open_store,
        tell: Callable[[Record, Mapping[str, Any]], None] = lambda _record, _said: None,
    ) -> None:
        self._environment, self._tell_page = environment, tell
        self._host = host or host_name()
        self._clock, self._open_store = clock, open_store
        self._life = Life(patience, host=self._host, clock=clock, alive=alive)
        self._told: set[tuple[str, str]] = set()

    def look(self, server: Watched) -> list[str]:
        """Look once; return the ids of the flow runs that were acted on.

        Raises:
            Unavailable: the Prefect server cannot be reached.
        """
        began = self._clock()
        runs = server.runs(states=WATCHED)
        ids = {run.id for run in runs}
        self._told = {(run_id, what) for run_id, what in self._told if run_id in ids}
        acted = []
        for run in runs:
            try:
                if self._attend(server, run):
                    acted.append(run.id)
            except Unavailable as error:
                self._tell(run, f"cannot be looked at now: {error}")
            except RunError as error:
                self._tell(run, f"is left alone: {error}")
            except _Taken:
                logger.info("%s: another rescuer is at it", run.name)
            except Exception:
                # One odd run must not end what every other run relies on.
                logger.exception("%s could not be looked at", run.name)
        self._life.looked(ids, took_s=self._clock() - began)
        return acted

    def _attend(self, server: Watched, run: FlowRun) -> bool:
        assert run.state is not None
        parameters = parameters_of(run)
        holder = assigned_host(run)
        if is_local(parameters) and holder not in (None, self._host):
            self._tell(run, f"is on {holder}'s disk: only the rescue there can help it")
            return False
        # One on a disk that no start has named yet may be on any: nothing is there to be read.
        reachable = parameters.location is not None and (holder is not None or not is_local(parameters))
        store = self._open_store(str(parameters.location), self._environment) if reachable else None
        slug = parameters.slug
        ledger = None if store is None or slug is None else LedgerFile(store, slug).read()
        why = self._life.dead(server, run, store, ledger)
        if why is None:
            return False
        asked = since_asked(server.states(run.id))
        return self._act(server, _Found(run=run, why=why, asked=asked, store=store, ledger=ledger))

    def _act(self, server: Watched, found: _Found) -> bool:
        """Report what was decided but not reported, or else schedule the run again; False: it has changed."""
        run = found.run
        assert run.state is not None
        kind, message = _unreported(found) or self._again(found)
        now = server.run(run.id).state
        if now is None or now.id != run.state.id:
            return False
        logger.warning("%s: %s: %s", run.name, message, kind)
        # First of all: said once somebody may have taken the run, it would speak over the next attempt.
        try:
            self._show(found, kind, message)
        except Exception:
            # What a page says is worth no run.
            logger.exception("%s: its page was not told", run.name)
        server.end_task_runs(run.id, message=f"Its flow process has ended: {found.why}")
        if kind == "SCHEDULED":
            server.set_state(run.id, AWAITING_RETRY, message=message)
        else:
            server.set_state(run.id, {"type": kind}, message=message, force=True)
        return True

    def _show(self, found: _Found, kind: str, message: str) -> None:
        """Say on the run's page what its flow process could not."""
        parameters = parameters_of(found.run)
        if parameters.slug is None:
            return
        ledger = found.ledger
        if kind in ("COMPLETED", "FAILED") and found.store is not None and ledger is not None:
            action = Action.COMPLETE if kind == "COMPLETED" else Action.FAIL
            said = last_word(Decision(action, message), ledger, found.store, say=logger.warning)
        else:
            said = {"state": PAGE_STATES[kind], "reason": message}
            if kind == "CANCELLED" and found.store is not None:
                said["result"] = result_of(found.store, say=logger.warning)
        self._tell_page(record_of(parameters), said)

    def _again(self, found: _Found) -> tuple[str, str]:
        """Say that the run is scheduled again, or has failed when that was in vain too often."""
        slug = found.run.train.get("slug")
        if found.store is not None and slug is not None:
            in_vain = self._claim(LedgerFile(found.store, slug), found)
        else:
            in_vain = sum(state.type == "CRASHED" for state in found.asked)
        if in_vain >= IN_VAIN:
            told = f"crashed {in_vain} times before it could begin: {found.why}"
            return "FAILED", f"{told}. Schedule it again to go on."
        return "SCHEDULED", f"Rescued: {found.why}"

    def _claim(self, file: LedgerFile, found: _Found) -> int:
        """Be the one who schedules this state's successor; return how many rescues before were in vain."""
        assert found.run.state is not None
        state_id, asked = found.run.state.id, {state.id for state in found.asked}

        def edit(ledger: Ledger) -> Ledger:
            last, token = ledger.rescue, ledger.owner.token if ledger.owner is not None else None
            if last is not None and last.state_id == state_id:
                if last.by != self._host and now_ms() - last.at_ms < CLAIM_S * 1000:
                    raise _Taken
                return replace(ledger, rescue=replace(last, by=self._host, at_ms=now_ms()))
            again = last is not None and last.owner == token and last.state_id in asked
            in_vain = last.in_vain + 1 if last is not None and again else 0
            rescue = Rescue(state_id=state_id, by=self._host, at_ms=now_ms(), owner=token, in_vain=in_vain)
            return replace(ledger, rescue=rescue)

        rescue = file.change(edit).rescue
        assert rescue is not None
        return rescue.in_vain

    def _tell(self, run: FlowRun, what: str) -> None:
        if (run.id, what) not in self._told:
            self._told.add((run.id, what))
            logger.warning("%s %s", run.name, what)


def _unreported(found: _Found) -> tuple[str, str] | None:
    """Return the end that was decided and not reported, and its message: a cancellation, a last word."""
    starts = [index for index, state in enumerate(found.asked) if state.type == "SCHEDULED"]
    current = found.asked[starts[-1] :] if starts else found.asked
    if any(state.type == "CANCELLING" for state in current):
        return "CANCELLED", "Cancelled; its processes are gone."
    ledger = found.ledger
    if ledger is None or ledger.owner is None or ledger.closed is None:
        return None
    if all(state.id != ledger.owner.state_id for state in current):
        return None
    kind = "COMPLETED" if ledger.closed.action is Action.COMPLETE else "FAILED"
    return kind, ledger.closed.reason
