"""How far a run has come, by what lies at its location: that decides whether a killed attempt was in vain."""

from __future__ import annotations

import hashlib
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from runtime.checkpoints.record import read_record
from runtime.checkpoints.store import Missing

if TYPE_CHECKING:
    from runtime.checkpoints.store import Store

__all__ = ["End", "Files", "Inside", "Recorded", "Standing"]

SEEN = "seen.json"
"""Where at the location is kept of which objects a command's progress was made."""

CODES = {"done": 0, "failed": 1, "interrupted": 128 + signal.SIGTERM}


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """An attempt's own word on its end. `code` unset: it says nothing that we know. `step`: of a failure."""

    attempt: int
    done: bool
    code: int | None
    step: int | None
    ended_ms: int


class Standing(Protocol):
    """What a location says of its run. It exists because a command of a user's own keeps no run record.

    Every method raises `Unavailable` when the location cannot be reached.
    """

    def recorded(self) -> int | None:
        """Return the number of the newest attempt that claimed the run; unset: attempts claim nothing."""
        ...

    def progress(self) -> int:
        """Return a number that grows whenever the run has kept something new; 0 before the first time."""
        ...

    def shown(self, progress: int) -> str:
        """Return what `progress` said, for people."""
        ...

    def end(self) -> End | None:
        """Return how the newest attempt ended, as it has written down itself; unset: it has not."""
        ...


class Recorded:
    """What the run record of `sexpgpu run` says: progress is the newest checkpoint's step."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def recorded(self) -> int | None:
        """See `Standing.recorded`."""
        found = read_record(self._store)
        return 0 if found is None else found[0].attempt.number

    def progress(self) -> int:
        """See `Standing.progress`."""
        found = read_record(self._store)
        newest = found[0].newest if found is not None else None
        return newest.step if newest is not None else 0

    def shown(self, progress: int) -> str:
        """Return the step."""
        return f"step {progress}"

    def end(self) -> End | None:
        """See `Standing.end`."""
        found = read_record(self._store)
        ended = found[0].ended if found is not None else None
        if ended is None:
            return None
        return End(
            attempt=ended.attempt,
            done=ended.status == "done",
            code=CODES.get(ended.status),
            step=ended.step if ended.status == "failed" else None,
            ended_ms=ended.ended_ms,
        )


class _Seen(msgspec.Struct):
    """Digests of the names of all objects that there ever were."""

    names: set[str]


class Files:
    """What a command has put below `prefix`: progress is how many objects there ever were, by their names.

    One that was replaced is not new: of a command that is killed while it writes, it may be the same half of
    a file each time. What was seen lies at the location, so that every flow process knows it.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def recorded(self) -> int | None:
        """Return nothing: the ledger alone counts a command's attempts."""
        return None

    def progress(self) -> int:
        """Return how many objects there ever were."""
        seen = self._seen()
        names = {_digest(found.key) for found in self._store.list(self._prefix)}
        if not names <= seen:
            seen |= names
            self._store.put(SEEN, msgspec.json.encode(_Seen(seen), order="deterministic"))
        return len(seen)

    def shown(self, progress: int) -> str:
        """Return how many files there were."""
        return f"{progress} file{'s' * (progress != 1)}" if progress else "nothing"

    def end(self) -> End | None:
        """Return nothing: how a command ended that nobody saw end is not known."""
        return None

    def _seen(self) -> set[str]:
        try:
            return msgspec.json.decode(self._store.get(SEEN)[0], type=_Seen).names
        except (Missing, msgspec.DecodeError):  # a stranger's is replaced
            return set()


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()


class Inside:
    """The run record of a `sexpgpu run` that was shipped; the ledger counts the attempts of its run."""

    def __init__(self, store: Store) -> None:
        self._record = Recorded(store)

    def recorded(self) -> int | None:
        """Return nothing: the record counts what claimed it, the ledger what was started."""
        return None

    def progress(self) -> int:
        """Return the newest checkpoint's step."""
        return self._record.progress()

    def shown(self, progress: int) -> str:
        """Return the step."""
        return self._record.shown(progress)

    def end(self) -> End | None:
        """Return nothing: another attempt finds out at once, and numbers differ."""
        return None
