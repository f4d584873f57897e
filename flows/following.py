"""Following a run: what its log says and how its state changes, each once, since it was last scheduled."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from flows.flow_runs import WAITING, since_asked
from flows.server import connect
from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flows.flow_runs import LogLine, State
    from flows.server import Server

__all__ = ["follow"]

LATE = timedelta(seconds=10)
"""How much later than a newer line one may arrive: worker and flow process hand theirs in by themselves."""

LAST_WORDS_S = 6.0
"""How long a final run's last lines may take: its flow process hands them in when it ends."""

END = "Finished in state "
PREFECTS = (
    END,
    "Beginning flow run ",
    "Task run failed with state",
    "Task run crashed with state",
    "Engine execution exited",
    "NoneType: None",
)
"""How Prefect's own lines begin that only repeat what the run's states say."""


def follow(slug: str, *, poll_s: float = 1.0, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield the run's log lines and changes of state since it was last scheduled, until it is no longer live.

    The last one is its final state, with the reason.

    Raises:
        Rejected: there is no such run.
        Unavailable: the Prefect server cannot be reached.
    """
    with connect() as server:
        runs = server.runs(slug=slug)
        if not runs:
            raise Rejected(f"no run {slug!r}: `slugline list` shows what there is.")
        yield from _Follower(server, slug, runs[0].id).lines(poll_s, sleep)


class _Follower:
    """What of one flow run has been told."""

    def __init__(self, server: Server, slug: str, flow_run_id: str) -> None:
        self._server, self._slug, self._id = server, slug, flow_run_id
        states = server.states(flow_run_id)
        self._since = _round_start(states)
        self._from = self._since
        self._told: set[str] = set()
        self._ended = False

    def lines(self, poll_s: float, sleep: Callable[[float], None]) -> Iterator[str]:
        while (state := self._server.run(self._id).state) is None or state.live:
            yield from self._news()
            yield from self._state(state)
            sleep(poll_s)
        left_s = LAST_WORDS_S
        yield from self._news()
        while not self._ended and left_s > 0:
            sleep(poll_s)
            left_s -= poll_s
            yield from self._news()
        yield from self._state(state)

    def _state(self, state: State | None) -> Iterator[str]:
        if state is None or state.id in self._told:
            return
        self._told.add(state.id)
        if state.name != WAITING:  # its message stands in the log
            yield f"{self._slug}: {state.name}" + (f": {state.message}" if state.message else "")

    def _news(self) -> Iterator[str]:
        for line in self._server.logs(self._id, since=self._from):
            if line.id in self._told:
                continue
            self._told.add(line.id)
            self._from = max(self._from, line.timestamp - LATE)
            yield from self._shown(line)

    def _shown(self, line: LogLine) -> Iterator[str]:
        first = line.message.partition("\n")[0]
        # That of an attempt comes while the run is live, and that of the run after its last state.
        self._ended = first.startswith(END)
        if not first.startswith(PREFECTS):
            yield first


def _round_start(states: Sequence[State]) -> datetime:
    """Return when the run was last scheduled, by a person; a final run's last round is over."""
    over = bool(states) and not states[-1].live
    since = since_asked(states[:-1] if over else states)
    return since[0].timestamp if since else datetime.fromtimestamp(0, UTC)
