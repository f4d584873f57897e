"""Looking after one run until it is done, attempt after attempt, by what the ledger says. No Prefect here."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from flows.attempts import GUARD_MARGIN_S, wait_gone
from flows.endings import Action, Decision, Ended, Ending, Policy, backoff_s, decide
from flows.ledger import Closed, Entry, Ledger, LedgerFile, Owner
from flows.processes import ProcessId, host_name, is_alive
from runtime.errors import Superseded, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from flows.standing import Standing
    from runtime.checkpoints.store import Store

__all__ = ["Keeper", "Trainer"]

logger = logging.getLogger(__name__)

OWNER_GRACE_S = 10.0
"""How long a flow process that has reported its end may take to go."""

SWEEP_S = 5.0

T = TypeVar("T")


class Trainer(Protocol):
    """What runs one attempt. It exists so that the loop can be tested without processes."""

    def __call__(self, number: int, started: Callable[[ProcessId | None], None]) -> Ended:
        """Run attempt `number` to its end; `started` is told the trainer's identity."""
        ...


def now_ms() -> int:
    """Return the epoch milliseconds of this host's clock."""
    return time.time_ns() // 1_000_000


@dataclass(kw_only=True)
class Keeper:
    """One flow process's care for one run. `say` puts a sentence on the run; `show` gets every new ledger.

    `stand` makes the run's state say that it waits, and why; unset: that it goes on.
    `asked` are the ids of the flow run's states since a person last scheduled it. `standing` says how far the
    run is.
    """

    slug: str
    store: Store
    standing: Standing
    owner: Owner
    asked: frozenset[str]
    policy: Policy
    notice_s: float
    train: Trainer
    say: Callable[[str], None]
    show: Callable[[Ledger], None]
    stand: Callable[[str | None], None]
    sleep: Callable[[float], None] = time.sleep
    alive: Callable[[ProcessId], bool | None] = is_alive

    def __post_init__(self) -> None:
        self._file = LedgerFile(self.store, self.slug)
        self._has_taken = False

    def keep(self) -> Decision:
        """Train until there is a last word, and return it: complete, fail or abort."""
        try:
            if (refusal := self._take_over()) is not None:
                return refusal
            return self._loop()
        except Superseded as error:
            return Decision(Action.ABORT, str(error))

    def is_replaced(self) -> bool:
        """Say whether another flow process has taken the run from this one; any thread may ask.

        Raises:
            Unavailable: the location cannot be reached.
        """
        if not self._has_taken:
            return False
        ledger = self._file.read()
        owner = ledger.owner if ledger is not None else None
        return owner is not None and owner.token != self.owner.token

    def _loop(self) -> Decision:
        waits, decision = 0, self._first()
        while decision.action in (Action.WAIT, Action.RESUME):
            if decision.action is Action.WAIT:
                waits += 1
                self._wait(decision.reason, waits)
                self.stand(None)
            else:
                waits = 0
                if decision.reason:
                    self.say(decision.reason)
            self._attempt()
            decision = decide(self._patiently(self._read).history(), self.policy)
        if decision.action is not Action.ABORT:
            self._close(decision)
        return decision

    def _first(self) -> Decision:
        """Decide what this flow process begins with: an attempt, with nothing to be said of the last ones."""
        history = self._patiently(self._read).history()
        if history and history[-1].ending is Ending.SUPERSEDED and (done := self._done_by_newer()):
            return done
        # That another attempt was newer was the last owner's reason to leave, and is none of ours.
        history = tuple(ended for ended in history if ended.ending is not Ending.SUPERSEDED)
        return decide(history, self.policy) if history else Decision(Action.RESUME, "")

    def _done_by_newer(self) -> Decision | None:
        """Say that the attempt for which the last owner left has done the run; unset: it has not."""
        end = self._patiently(self.standing.end)
        if end is None or not end.done:
            return None
        return Decision(Action.COMPLETE, f"done by attempt {end.attempt}")

    def _take_over(self) -> Decision | None:
        """Become the owner, once the last one and its trainer are gone; say why not otherwise."""
        ledger = self._patiently(lambda: self._file.read() or Ledger(slug=self.slug))
        before = ledger.owner
        if before is not None and not wait_gone(before.process, alive=self.alive, timeout_s=OWNER_GRACE_S):
            other = f"flow process {before.process.pid} on this host"
            return Decision(Action.ABORT, f"{other} looks after {self.slug} already")
        entry = ledger.open_entry()
        if entry is not None and entry.trainer is not None:
            # It may still be saving what it has: a newer claim would make that save worthless.
            limit_s = self.notice_s + GUARD_MARGIN_S + SWEEP_S
            if self.alive(entry.trainer):
                self.say(f"attempt {entry.number} is still saving: waiting up to {limit_s:g} s")
            if not wait_gone(entry.trainer, alive=self.alive, timeout_s=limit_s):
                logger.error("trainer %d of attempt %d does not end", entry.trainer.pid, entry.number)
        self.show(self._patiently(lambda: self._file.change(self._taken)))
        self._has_taken = True
        self._settle()
        return None

    def _taken(self, old: Ledger) -> Ledger:
        return old.taken_by(self.owner, asked=self.asked)

    def _settle(self) -> None:
        """Write down how an attempt ended whose flow process could not: as the run record says, else lost."""

        def edit(ledger: Ledger) -> Ledger:
            entry = ledger.open_entry()
            return ledger if entry is None else ledger.with_last(self._found_ended(entry))

        self._change(edit)

    def _found_ended(self, entry: Entry) -> Entry:
        end, step = self.standing.end(), self.standing.progress()
        if end is None or end.attempt != entry.number:
            return replace(entry, ended_ms=now_ms(), end_step=step)
        return replace(entry, ended_ms=end.ended_ms, end_step=step, code=end.code, failed_step=end.step)

    def _attempt(self) -> None:
        recorded, step = self._patiently(lambda: (self.standing.recorded(), self.standing.progress()))
        ledger = self._change(
            lambda old: old.started(host=host_name(), recorded=recorded, start_step=step, at_ms=now_ms())
        )
        entry = ledger.attempts[-1]
        ended = self.train(entry.number, self._started)
        logger.info("attempt %d ended: %s", entry.number, ended)
        end_step = self._patiently(self.standing.progress)

        def edit(old: Ledger) -> Ledger:
            return old.with_last(
                replace(
                    old.attempts[-1],
                    ended_ms=now_ms(),
                    end_step=end_step,
                    code=ended.code,
                    ending=ended.ending,
                    failed_step=ended.step,
                    error=ended.error,
                    unsent=ended.unsent,
                )
            )

        self._change(edit)

    def _started(self, trainer: ProcessId | None) -> None:
        # Only rescue on this host wants it, and training does not wait for that.
        with contextlib.suppress(Unavailable):
            self._file.change_as(
                self.owner.token, lambda old: old.with_last(replace(old.attempts[-1], trainer=trainer))
            )

    def _close(self, decision: Decision) -> None:
        closed = Closed(action=decision.action, reason=decision.reason, at_ms=now_ms())
        self._change(lambda old: replace(old, closed=closed))

    def _read(self) -> Ledger:
        ledger = self._file.read()
        if ledger is None or ledger.owner is None or ledger.owner.token != self.owner.token:
            raise Superseded(f"another flow process looks after {self.slug} now.")
        return ledger

    def _change(self, edit: Callable[[Ledger], Ledger]) -> Ledger:
        ledger = self._patiently(lambda: self._file.change_as(self.owner.token, edit))
        self.show(ledger)
        return ledger

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, waiting while the location cannot be reached."""
        tries = 0
        while True:
            try:
                answer = ask()
            except Unavailable as error:
                tries += 1
                self._wait(f"waiting: {error}", tries)
                continue
            if tries:
                self.stand(None)
            return answer

    def _wait(self, reason: str, tries: int) -> None:
        text = f"{reason}; next try in {backoff_s(tries):g} s"
        self.say(text)
        self.stand(text)
        self.sleep(backoff_s(tries))
