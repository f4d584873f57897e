"""Where the tail of a telemetry file delivers to: the `Destination` Protocol, and one in memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from runtime.telemetry.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Batch", "Data", "Destination", "MemoryDestination", "Moved", "Refused", "Stored", "Trouble"]

Data: TypeAlias = "Mapping[str, int | float]"
"""One point: its numbers under their keys; empty for a line without numbers."""


class Trouble(Exception):
    """It could not be reached or could not answer now. `retry_after_s` unset: it did not say."""

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Moved(Exception):
    """Something else is stored than the batch follows: ask for the cursor and go on from there."""


class Refused(Exception):
    """It will not take this, however often it is sent: the run is gone, or a newer attempt owns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What of a run is stored: all that a tail needs to go on, whoever read the file before.

    `last_seq` is the newest point's place in the run, 0 before the first. `keys` stand in their order of
    arrival; `dropped` counts by reason.
    """

    last_seq: int = 0
    points: int = 0
    keys: Sequence[str] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    cursor: Cursor = field(default_factory=Cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Points that follow `after_seq`, the counts as they are after them, and how far the file is read.

    All of it is stored at once or not at all.
    """

    after_seq: int
    points: Sequence[Data]
    dropped: Mapping[str, int]
    cursor: Cursor


class Destination(Protocol):
    """Keeps a run's points. It exists so that the tail can be tested without a server.

    What it has stored decides: a tail that dies remembers nothing of its own.
    """

    def cursor(self) -> Stored:
        """Return what is stored. Raises `Trouble` or `Refused`."""
        ...

    def send(self, batch: Batch) -> None:
        """Store `batch` if `batch.after_seq` is the newest stored point's place.

        Raises:
            Moved: it is not. An earlier send may have been stored although its answer was lost.
            Trouble: it is not known whether it was stored; to be sent again, or asked for.
            Refused: it was not stored, and never will be.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds open."""
        ...


class MemoryDestination:
    """Keeps everything in memory, for tests and notebooks. Any thread may use it."""

    def __init__(self) -> None:
        self.points: list[Data] = []
        self.keys: list[str] = []
        self.dropped: dict[str, int] = {}
        self.place = Cursor()
        self.num_batches = 0
        self._lock = threading.Lock()

    def cursor(self) -> Stored:
        """Return what is stored."""
        with self._lock:
            return Stored(
                last_seq=len(self.points),
                points=len(self.points),
                keys=tuple(self.keys),
                dropped=dict(self.dropped),
                cursor=self.place,
            )

    def send(self, batch: Batch) -> None:
        """Store `batch`. Raises `Moved` when it does not follow what is stored."""
        with self._lock:
            if batch.after_seq != len(self.points):
                raise Moved(f"the batch follows point {batch.after_seq}, stored are {len(self.points)}")
            self.points += batch.points
            known = dict.fromkeys(self.keys)
            known.update((key, None) for data in batch.points for key in data)
            self.keys = list(known)
            self.dropped = dict(batch.dropped)
            self.place = batch.cursor
            self.num_batches += 1

    def close(self) -> None:
        """Keep everything: there is nothing to let go of."""
