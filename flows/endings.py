"""How an attempt ended, and what follows: the one place where a run's fate is decided."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flows.assignment import RunParameters

__all__ = ["Action", "Decision", "Ended", "Ending", "Policy", "backoff_s", "classify", "decide", "describe"]

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 5.0, 300.0

DELIVERIES = 5
"""How often a run that is done is started again for the events that Metrics has not taken."""


class Ending(StrEnum):
    """The kinds of ending that are told apart."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    FAILED = "failed"
    REJECTED = "rejected"
    UNAVAILABLE = "unavailable"
    SUPERSEDED = "superseded"


UNCOUNTED = frozenset({Ending.UNAVAILABLE, Ending.SUPERSEDED})
"""Endings that say nothing against the run."""


class Action(StrEnum):
    """What the flow does next."""

    COMPLETE = "complete"
    RESUME = "resume"
    WAIT = "wait"
    FAIL = "fail"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One attempt's ending.

    `code` is the wait status as Python gives it (-9: killed by signal 9); unset: nobody saw the process end.
    `step` and `error` are what the run's `failed: <error>` annotation says; unset without one. `advanced`:
    the newest checkpoint's step was higher at its end than at its start. `unsent` is how many events Metrics
    had not taken when the run was done. `tries` counts the times in a row that it ended just so.
    """

    ending: Ending
    code: int | None = None
    step: int | None = None
    error: str | None = None
    advanced: bool = False
    unsent: int = 0
    tries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How often is tried again: see `TrainParameters`."""

    interruptions: int
    failures: int
    no_progress: int

    @classmethod
    def of(cls, parameters: RunParameters) -> Policy:
        """Return what a run is asked for. A smaller `no_progress` than a budget would make that one empty."""
        interruptions, failures = parameters.interruptions, parameters.failures
        unset = max(1, interruptions, failures)
        no_progress = unset if parameters.no_progress is None else parameters.no_progress
        return cls(interruptions=interruptions, failures=failures, no_progress=no_progress)


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows, and the sentence that is said on the run."""

    action: Action
    reason: str


def classify(code: int | None) -> Ending:
    """Tell the endings apart by the wait status `code`; unset: the process vanished with its flow process."""
    if code is None:
        return Ending.LOST
    if code < 0 or 128 < code <= 128 + signal.NSIG:
        return Ending.INTERRUPTED
    table = {0: Ending.DONE, 2: Ending.REJECTED, 75: Ending.UNAVAILABLE, 76: Ending.SUPERSEDED}
    return table.get(code, Ending.FAILED)


def decide(history: Sequence[Ended], policy: Policy) -> Decision:
    """Decide what follows the newest of `history`, the endings since a person last scheduled the run."""
    last = history[-1]
    if last.ending is Ending.SUPERSEDED:
        return Decision(Action.ABORT, "a newer attempt owns the run")
    if (decided := _after_done(history) or _plain(last)) is not None:
        return decided
    counted = [ended for ended in history if ended.advanced or ended.ending not in UNCOUNTED]
    if len(stalled := _stalled(counted)) >= policy.no_progress:
        return Decision(
            Action.FAIL,
            f"no progress over {len(stalled)} resumes: {describe(last)}. Schedule it again to go on.",
        )
    if last.ending is Ending.FAILED:
        return _after_failure(counted, policy)
    return _after_interruption(counted, policy)


def _plain(last: Ended) -> Decision | None:
    """Return what follows endings that no budget has a say in; unset: it is another ending."""
    match last.ending:
        case Ending.REJECTED:
            return Decision(Action.FAIL, f"rejected: {last.error or 'exit code 2'}")
        case Ending.UNAVAILABLE:
            return Decision(Action.WAIT, f"waiting: {last.error or 'exit code 75'}")
        case _:
            return None


def _after_done(history: Sequence[Ended]) -> Decision | None:
    """Return what follows a run that is done, whatever became of its deliveries; unset: it is not done."""
    done = [index for index, ended in enumerate(history) if ended.ending is Ending.DONE]
    if not done:
        return None
    unsent = history[done[-1]].unsent
    if not unsent:
        return Decision(Action.COMPLETE, "done")
    if sum(ended.tries for ended in history[done[0] :]) <= DELIVERIES:
        return Decision(Action.WAIT, f"done, and {unsent} events are still to be delivered to Metrics")
    lost = f"done, but Metrics has not taken {unsent} events"
    return Decision(Action.COMPLETE, f"{lost}: schedule the run again to deliver them")


def _stalled(counted: Sequence[Ended]) -> Sequence[Ended]:
    """Return the resumes at the end that brought no newer checkpoint; the first attempt is no resume."""
    resumes = counted[1:]
    first = next((i for i in range(len(resumes), 0, -1) if resumes[i - 1].advanced), 0)
    return resumes[first:]


def _after_failure(counted: Sequence[Ended], policy: Policy) -> Decision:
    *before, last = counted
    failures = [ended for ended in before if ended.ending is Ending.FAILED]
    if last.step is not None and any((f.step, f.error) == (last.step, last.error) for f in failures):
        return Decision(Action.FAIL, f"step {last.step} failed the same way twice: {last.error}")
    if not policy.failures:
        return Decision(Action.FAIL, describe(last))
    if len(failures) >= policy.failures:
        return Decision(
            Action.FAIL, f"failed {len(failures) + 1} times, {policy.failures} retried: {describe(last)}"
        )
    return Decision(Action.RESUME, f"{describe(last)}; retry {len(failures) + 1} of {policy.failures}")


def _after_interruption(counted: Sequence[Ended], policy: Policy) -> Decision:
    spent = 0
    for ended in reversed(counted):
        if ended.ending in (Ending.INTERRUPTED, Ending.LOST):
            spent += 1
        if ended.advanced:
            break
    last = counted[-1]
    if spent > policy.interruptions:
        return Decision(
            Action.FAIL,
            f"interrupted {spent} times without a newer checkpoint: {describe(last)}. Schedule it again.",
        )
    return Decision(Action.RESUME, f"{describe(last)}; resuming")


def describe(ended: Ended) -> str:
    """Say how it ended in a few words."""
    code = ended.code
    if code is None:
        return "lost with its flow process"
    if ended.ending is Ending.DONE:
        return "done" + (f", {ended.unsent} events not in Metrics" if ended.unsent else "")
    number = -code if code < 0 else code - 128
    if ended.ending is Ending.INTERRUPTED:
        how = "killed by" if code < 0 else "interrupted by"
        return f"{how} {_signal_name(number)}" + (f" ({ended.error})" if ended.error else "")
    where = f" at step {ended.step}" if ended.step is not None else ""
    return f"exit code {code}{where}" + (f": {ended.error}" if ended.error else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def backoff_s(tries: int) -> float:
    """Return the seconds to wait after `tries` (from 1) endings 75 in a row."""
    return float(min(FIRST_BACKOFF_S * 2 ** min(tries - 1, 10), LONGEST_BACKOFF_S))
