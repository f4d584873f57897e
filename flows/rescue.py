"""Rescue: finds runs that died and has them scheduled again. `python -m flows.rescue`, one on each host.

A run whose flow process, worker or host died has nobody left who could retry it. Rescue asks the server,
the run's location and, on its own host, the processes. Death is proven when the owner of the run is a
process of this host that is gone; else it is believed when every sign of life stood still for `quiet_s`
of this rescuer's own clock while it could look. Missing heartbeats alone never are enough.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from prefect.settings import PREFECT_API_URL

from flows.assignment import assigned_host, is_local, parameters_of
from flows.endings import Action, Decision, Ending
from flows.keeper import now_ms
from flows.ledger import LedgerFile, Rescue
from flows.processes import host_name, is_alive, is_running
from flows.pulse import read_pulse
from flows.records import record_of
from flows.run_page import last_word, report_end
from flows.server import AWAITING_RETRY, connect, same_start, since_asked
from runtime.checkpoints.location import open_store
from runtime.checkpoints.record import read_record
from runtime.errors import RunError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from types import FrameType

    from flows.ledger import Ledger, Owner
    from flows.processes import ProcessId
    from flows.run_writer import Record
    from flows.server import FlowRun, State
    from runtime.checkpoints.record import AttemptEntry
    from runtime.checkpoints.store import Store

__all__ = ["Rescuer", "Settings", "main"]

logger = logging.getLogger(__name__)

WATCHED = ("CRASHED", "RUNNING", "PENDING", "CANCELLING")
BEAT_S = 35.0
"""A living flow process is heard again within this after an outage: a heartbeat, or a pulse."""

PAGE_STATES = {"SCHEDULED": "retrying", "COMPLETED": "done", "FAILED": "failed", "CANCELLED": "cancelled"}
"""What the run's page in Metrics calls what became of it."""

CLAIM_S = 60.0
IN_VAIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`quiet_s` without a sign of life is death; `pending_s` is how long a flow process may take to start."""

    poll_s: float = 5.0
    quiet_s: float = 60.0
    pending_s: float = 60.0


class Watched(Protocol):
    """What rescue asks of a Prefect server. It exists so that nights of trouble pass in a test's second."""

    def runs(self, *, states: Sequence[str]) -> list[FlowRun]:
        """See `Server.runs`."""
        ...

    def run(self, flow_run_id: str) -> FlowRun:
        """See `Server.run`."""
        ...

    def states(self, flow_run_id: str) -> list[State]:
        """See `Server.states`."""
        ...

    def last_heartbeat(self, flow_run_id: str) -> datetime | None:
        """See `Server.last_heartbeat`."""
        ...

    def set_state(
        self, flow_run_id: str, state: Mapping[str, Any], *, message: str, force: bool = False
    ) -> State | None:
        """See `Server.set_state`."""
        ...

    def end_task_runs(self, flow_run_id: str, *, message: str) -> None:
        """See `Server.end_task_runs`."""
        ...


@dataclass(slots=True)
class _Sight:
    """What was last seen of a run, and since when (by our clock) it has looked the same."""

    signs: tuple[object, ...]
    since: float
    looked: float


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
        settings: Settings,
        environment: Mapping[str, str],
        *,
        host: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        alive: Callable[[ProcessId], bool | None] = is_alive,
        open_store: Callable[[str, Mapping[str, str]], Store] = open_store,
        tell: Callable[[Record, Mapping[str, Any]], None] = lambda _record, _said: None,
    ) -> None:
        self._settings, self._environment, self._tell_page = settings, environment, tell
        self._host = host or host_name()
        self._clock, self._alive, self._open_store = clock, alive, open_store
        self._sights: dict[str, _Sight] = {}
        self._told: set[tuple[str, str]] = set()
        self._look_s = 0.0

    def look(self, server: Watched) -> list[str]:
        """Look once; return the ids of the flow runs that were acted on.

        Raises:
            Unavailable: the Prefect server cannot be reached.
        """
        began = self._clock()
        runs = server.runs(states=WATCHED)
        ids = {run.id for run in runs}
        self._sights = {run_id: sight for run_id, sight in self._sights.items() if run_id in ids}
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
        self._look_s = self._clock() - began
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
        why = self._dead(server, run, store, ledger)
        if why is None:
            return False
        asked = since_asked(server.states(run.id))
        return self._act(server, _Found(run=run, why=why, asked=asked, store=store, ledger=ledger))

    def _dead(self, server: Watched, run: FlowRun, store: Store | None, ledger: Ledger | None) -> str | None:
        """Say how we know that nobody looks after the run; unset: we do not."""
        state = run.state
        assert state is not None
        owner = ledger.owner if ledger is not None else None
        lives = self._alive(owner.process) if owner is not None and owner.flow_run_id == run.id else None
        if lives:
            return None
        if state.type == "CRASHED":
            return (state.message or "crashed").partition(". ")[0]
        if lives is False and ledger is not None and owner is not None and _began(server, run, owner):
            if not _left_to_newer(ledger):
                return f"its flow process {owner.process.pid} is gone"
            record = store and read_record(store)
            if record and record[0].ended is not None:
                return f"attempt {record[0].attempt.number}, to which it was left, has ended"
            if record and self._attempt_lives(record[0].attempt):
                return None
        return self._quiet(run, self._signs(server, run, store))

    def _attempt_lives(self, attempt: AttemptEntry) -> bool:
        """Say whether an attempt, started by whomever, is a process of this host."""
        return attempt.host == self._host and is_running(attempt.pid)

    def _signs(self, server: Watched, run: FlowRun, store: Store | None) -> tuple[object, ...]:
        assert run.state is not None
        if store is None:
            return run.state.id, server.last_heartbeat(run.id)
        pulse, record = read_pulse(store), read_record(store)
        return run.state.id, server.last_heartbeat(run.id), pulse, record[1] if record is not None else None

    def _quiet(self, run: FlowRun, signs: tuple[object, ...]) -> str | None:
        assert run.state is not None
        now = self._clock()
        pending = run.state.type == "PENDING"
        limit_s = self._settings.pending_s if pending else self._settings.quiet_s
        sight = self._sights.get(run.id)
        if sight is None or sight.signs != signs:
            self._sights[run.id] = _Sight(signs, since=now, looked=now)
            return None
        if now - sight.looked > 3 * (self._settings.poll_s + self._look_s):
            # We could not look (a look at many runs takes its time): who lives had no chance to be seen.
            sight.since = max(sight.since, now - max(0.0, limit_s - BEAT_S))
        sight.looked = now
        if now - sight.since < limit_s:
            return None
        return f"{'not started' if pending else 'no sign of life'} for {now - sight.since:.0f} s"

    def _act(self, server: Watched, found: _Found) -> bool:
        """Report what was decided but not reported, or else schedule the run again; False: it has changed."""
        run = found.run
        assert run.state is not None
        kind, message = _unreported(found) or self._again(found)
        now = server.run(run.id).state
        if now is None or now.id != run.state.id:
            return False
        logger.warning("%s: %s: %s", run.name, message, kind)
        server.end_task_runs(run.id, message=f"Its flow process has ended: {found.why}")
        if kind == "SCHEDULED":
            server.set_state(run.id, AWAITING_RETRY, message=message)
        else:
            server.set_state(run.id, {"type": kind}, message=message, force=True)
        self._show(found, kind, message)
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


def _began(server: Watched, run: FlowRun, owner: Owner) -> bool:
    """Say whether the run is in the state under which its owner began, or in one that the owner gave it."""
    state = run.state
    if state is None or state.type != "RUNNING" or state.id == owner.state_id:
        return state is not None and state.id == owner.state_id
    return same_start(server.states(run.id), owner.state_id)


def _left_to_newer(ledger: Ledger) -> bool:
    """Say whether the flow process left because a newer attempt, not of any flow, owned the run."""
    last = ledger.attempts[-1] if ledger.attempts else None
    return last is not None and last.ended_ms is not None and last.how is Ending.SUPERSEDED


def main(argv: Sequence[str] | None = None) -> int:
    """Look every `--poll-s` until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flows.rescue", description=__doc__)
    unset = Settings()
    for flag, default, what in (
        ("--poll-s", unset.poll_s, "seconds between two looks (5)"),
        ("--quiet-s", unset.quiet_s, "seconds without a sign of life (60)"),
        ("--pending-s", unset.pending_s, "seconds to start a flow process (60)"),
    ):
        parser.add_argument(flag, type=_seconds, default=default, metavar="SECONDS", help=what)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    settings = Settings(poll_s=options.poll_s, quiet_s=options.quiet_s, pending_s=options.pending_s)
    if not PREFECT_API_URL.value():
        parser.error("PREFECT_API_URL is not set: name the server's /api.")
    rescuer = Rescuer(settings, os.environ, tell=lambda record, said: report_end(record, said, os.environ))
    _watch(rescuer, settings, stop)
    return 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return seconds


def _watch(rescuer: Rescuer, settings: Settings, stop: threading.Event) -> None:
    away = ""
    while not stop.is_set():
        try:
            with connect(retries=0) as server:
                rescuer.look(server)
            away = ""
        except RunError as error:
            if str(error) != away:
                away = str(error)
                logger.warning("%s", error)
        except Exception:
            # One odd answer must not end what every other run relies on.
            logger.exception("this look failed; the next is in %g s", settings.poll_s)
        stop.wait(settings.poll_s)


if __name__ == "__main__":
    sys.exit(main())
