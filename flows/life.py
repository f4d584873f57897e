"""Whether anybody looks after a run.

A run whose flow process, worker or host died has nobody left who could retry it. So the server is asked, the
run's location and, on its own host, the processes. Death is proven when the owner of the run is a
process of this host that is gone; else it is believed when every sign of life stood still for `quiet_s`
of this rescuer's own clock while it could look. Missing heartbeats alone never are enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flows.endings import Ending
from flows.flow_runs import same_start
from flows.processes import is_running
from flows.pulse import read_pulse
from runtime.checkpoints.record import read_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from flows.flow_runs import FlowRun, State
    from flows.ledger import Ledger, Owner
    from flows.processes import ProcessId
    from runtime.checkpoints.record import AttemptEntry
    from runtime.checkpoints.store import Store

__all__ = ["Life", "Patience", "TellsOfRuns"]

BEAT_S = 35.0
"""A living flow process is heard again within this after an outage: a heartbeat, or a pulse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """`quiet_s` without a sign of life is death; `pending_s` is how long a flow process may take to start."""

    poll_s: float = 5.0
    quiet_s: float = 60.0
    pending_s: float = 60.0


class TellsOfRuns(Protocol):
    """What a Prefect server is asked here."""

    def states(self, flow_run_id: str) -> list[State]:
        """See `Server.states`."""
        ...

    def last_heartbeat(self, flow_run_id: str) -> datetime | None:
        """See `Server.last_heartbeat`."""
        ...


@dataclass(slots=True)
class _Sight:
    """What was last seen of a run, and since when (by our clock) it has looked the same."""

    signs: tuple[object, ...]
    since: float
    looked: float


class Life:
    """Watches for signs of life of many runs, on `host`, by this process's own `clock`."""

    def __init__(
        self,
        patience: Patience,
        *,
        host: str,
        clock: Callable[[], float],
        alive: Callable[[ProcessId], bool | None],
    ) -> None:
        self._patience, self._host, self._clock, self._alive = patience, host, clock, alive
        self._sights: dict[str, _Sight] = {}
        self._look_s = 0.0

    def looked(self, run_ids: Collection[str], *, took_s: float) -> None:
        """Note how long it took to look once at all these runs; what was seen of others is forgotten."""
        self._sights = {run_id: sight for run_id, sight in self._sights.items() if run_id in run_ids}
        self._look_s = took_s

    def dead(
        self, server: TellsOfRuns, run: FlowRun, store: Store | None, ledger: Ledger | None
    ) -> str | None:
        """Say how we know that nobody looks after the run; unset: we do not.

        Raises:
            Unavailable: the server or the location cannot be reached.
        """
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

    def _signs(self, server: TellsOfRuns, run: FlowRun, store: Store | None) -> tuple[object, ...]:
        assert run.state is not None
        if store is None:
            return run.state.id, server.last_heartbeat(run.id)
        pulse, record = read_pulse(store), read_record(store)
        return run.state.id, server.last_heartbeat(run.id), pulse, record[1] if record is not None else None

    def _quiet(self, run: FlowRun, signs: tuple[object, ...]) -> str | None:
        assert run.state is not None
        now = self._clock()
        pending = run.state.type == "PENDING"
        limit_s = self._patience.pending_s if pending else self._patience.quiet_s
        sight = self._sights.get(run.id)
        if sight is None or sight.signs != signs:
            self._sights[run.id] = _Sight(signs, since=now, looked=now)
            return None
        if now - sight.looked > 3 * (self._patience.poll_s + self._look_s):
            # We could not look (a look at many runs takes its time): who lives had no chance to be seen.
            sight.since = max(sight.since, now - max(0.0, limit_s - BEAT_S))
        sight.looked = now
        if now - sight.since < limit_s:
            return None
        return f"{'not started' if pending else 'no sign of life'} for {now - sight.since:.0f} s"


def _began(server: TellsOfRuns, run: FlowRun, owner: Owner) -> bool:
    """Say whether the run is in the state under which its owner began, or in one that the owner gave it."""
    state = run.state
    if state is None or state.type != "RUNNING" or state.id == owner.state_id:
        return state is not None and state.id == owner.state_id
    return same_start(server.states(run.id), owner.state_id)


def _left_to_newer(ledger: Ledger) -> bool:
    """Say whether the flow process left because a newer attempt, not of any flow, owned the run."""
    last = ledger.attempts[-1] if ledger.attempts else None
    return last is not None and last.ended_ms is not None and last.how is Ending.SUPERSEDED
