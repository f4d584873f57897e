"""The ledger of attempts, at the run's location: what flows know of a run and must outlive every process.

The run record says which attempt may publish; the ledger says who looks after the run, how each attempt
ended and what was decided. It changes only by compare-and-swap, so that of two flow processes, or of two
rescuers, one wins.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from flows.endings import Action, Ended, Ending, classify
from flows.processes import ProcessId  # noqa: TC001 - msgspec reads the annotations
from runtime.checkpoints.store import Conflict, Missing
from runtime.errors import Rejected, RunError, Superseded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from runtime.checkpoints.store import Store

__all__ = ["LEDGER", "Closed", "Entry", "Ledger", "LedgerFile", "Owner", "Rescue", "TooBusy"]

LEDGER = "attempts.json"
VERSION = 1
TRIES = 50


class TooBusy(RunError):
    """The ledger changed under every one of our tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The flow process that looks after the run. `token` is drawn anew by every flow process.

    `state_id` is the Prefect state under which it runs: while the flow run is in that state, it is this
    process, and no later one, on which everything depends.
    """

    token: str
    process: ProcessId
    flow_run_id: str
    state_id: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One attempt as its flow process saw it. `trainer` unset: not started, or ended before it was seen.

    `ended_ms` unset: it has not ended, or nobody has seen its end. Steps are those of the newest checkpoint
    (of a command of the user's own: how many files there were). `number` is what the run record calls it;
    one that ended before it claimed the run leaves its number to the next. `ending` unset: what `code` says
    of a `sexpgpu run`. `tries` counts how often in a row the surroundings were at fault.
    """

    number: int
    host: str
    started_ms: int
    start_step: int
    trainer: ProcessId | None = None
    ended_ms: int | None = None
    end_step: int | None = None
    code: int | None = None
    ending: Ending | None = None
    failed_step: int | None = None
    error: str | None = None
    unsent: int = 0
    tries: int = 1

    @property
    def how(self) -> Ending:
        """The kind of its ending, once it has ended."""
        return self.ending if self.ending is not None else classify(self.code)

    def ended(self) -> Ended:
        """Return what `decide` needs of it."""
        assert self.ended_ms is not None
        return Ended(
            ending=self.how,
            code=self.code,
            step=self.failed_step,
            error=self.error,
            advanced=(self.end_step or 0) > self.start_step,
            unsent=self.unsent,
            tries=self.tries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The run's last word. Whoever schedules it again after that does so on purpose, with fresh budgets."""

    action: Action | None
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """A rescuer's claim on one Prefect state of the run: who schedules it again.

    `owner` is the token of the owner then; while it stays, rescues are in vain, and `in_vain` counts them.
    """

    state_id: str
    by: str
    at_ms: int
    owner: str | None
    in_vain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All of it. `round_start` is the first entry since a person last scheduled the run.

    `write` is drawn anew for every write, so that a writer knows its own from another's of the same content.
    """

    slug: str
    version: int = VERSION
    owner: Owner | None = None
    attempts: tuple[Entry, ...] = ()
    round_start: int = 0
    closed: Closed | None = None
    rescue: Rescue | None = None
    write: str = ""

    def history(self) -> tuple[Ended, ...]:
        """Return this round's endings, oldest first."""
        entries = self.attempts[self.round_start :]
        return tuple(entry.ended() for entry in entries if entry.ended_ms is not None)

    def open_entry(self) -> Entry | None:
        """Return the attempt whose end nobody has written down; unset: there is none."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.ended_ms is None else None

    def taken_by(self, owner: Owner, *, asked: Collection[str]) -> Ledger:
        """Return it under a new owner, and in a new round if a person asked for that.

        `asked` are the ids of the Prefect states since then: the same round has the last owner's among them.
        """
        if self.closed is None and (self.owner is None or self.owner.state_id in asked):
            return replace(self, owner=owner)
        return replace(self, owner=owner, closed=None, round_start=len(self.attempts), rescue=None)

    def started(self, *, host: str, recorded: int | None, start_step: int, at_ms: int) -> Ledger:
        """Return it with one more attempt.

        `recorded` is the newest number in the run record; unset: there is none, and we count.
        """
        last = self.attempts[-1] if self.attempts else None
        waited = last is not None and last.ended_ms is not None and last.how is Ending.UNAVAILABLE
        if recorded is None:
            recorded = 0 if last is None else last.number - waited
        if last is not None and waited and last.number == recorded + 1:
            # The same try again: a night of waiting for S3 is one line of the table, not a hundred.
            again = replace(
                last,
                host=host,
                started_ms=at_ms,
                trainer=None,
                ended_ms=None,
                code=None,
                ending=None,
                error=None,
                tries=last.tries + 1,
            )
            return replace(self.with_last(again), round_start=min(self.round_start, len(self.attempts) - 1))
        entry = Entry(number=recorded + 1, host=host, started_ms=at_ms, start_step=start_step)
        return replace(self, attempts=(*self.attempts, entry))

    def with_last(self, entry: Entry) -> Ledger:
        """Return it with its newest attempt replaced."""
        return replace(self, attempts=(*self.attempts[:-1], entry))


class LedgerFile:
    """The ledger at a run's location. It remembers nothing: every call reads what is there now."""

    def __init__(self, store: Store, slug: str) -> None:
        self._store, self._slug = store, slug

    def read(self) -> Ledger | None:
        """Return the ledger; unset: no flow has looked after a run here.

        Raises:
            Unavailable: the location cannot be reached.
        """
        return self._read()[0]

    def change(self, edit: Callable[[Ledger], Ledger]) -> Ledger:
        """Replace the ledger by `edit` of it, which runs again whenever someone else was first.

        Raises:
            Unavailable: the location cannot be reached.
            TooBusy: someone else was first 50 times.
        """
        new = None
        for _ in range(TRIES):
            old, etag = self._read()
            if old is not None and old == new:
                return old  # the write came through, only its reply was lost
            new = edit(old or Ledger(slug=self._slug))
            if new == old:
                return new
            new = replace(new, write=uuid.uuid4().hex)
            try:
                self._store.put_if(LEDGER, msgspec.json.encode(new), etag=etag)
            except Conflict:
                continue
            return new
        raise TooBusy(
            f"{LEDGER} of {self._slug} changed {TRIES} times while we wrote it: look for another writer."
        )

    def _read(self) -> tuple[Ledger | None, str | None]:
        try:
            data, etag = self._store.get(LEDGER)
        except Missing:
            return None, None
        where = f"{self._store.url}/{LEDGER}"
        try:
            ledger = msgspec.json.decode(data, type=Ledger)
        except msgspec.DecodeError as error:
            raise Rejected(
                f"{where} is no ledger ({error}): move it away, the run record decides."
            ) from error
        if ledger.version > VERSION:
            raise Rejected(
                f"{where} has version {ledger.version}, this Slugline reads {VERSION}: use a newer one."
            )
        return ledger, etag

    def change_as(self, token: str, edit: Callable[[Ledger], Ledger]) -> Ledger:
        """Do so as the owner with `token`.

        Raises:
            Superseded: another flow process looks after the run now.
        """

        def checked(ledger: Ledger) -> Ledger:
            if ledger.owner is None or ledger.owner.token != token:
                raise Superseded(f"another flow process looks after {self._slug} now.")
            return edit(ledger)

        return self.change(checked)
