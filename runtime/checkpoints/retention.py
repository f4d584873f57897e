"""Which checkpoints are kept, and what may be deleted when others are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from runtime.checkpoints.record import CheckpointEntry

__all__ = ["Retention", "unneeded_segments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Keep the last `keep_last` checkpoints, and for ever the first at or after a multiple of `keep_every`.

    One is late where the last was still being saved. `keep_every` unset keeps none for ever. Only
    checkpoints that this attempt published or loaded are counted: what it has not seen whole might be
    broken, and would push out what is good.
    """

    keep_last: int = 2
    keep_every: int | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 2:
            raise Rejected(
                f"keep_last must be at least 2, got {self.keep_last}: a damaged newest one needs an older one"
            )
        if self.keep_every is not None and self.keep_every < 1:
            raise Rejected(
                f"keep_every must be at least 1 step, got {self.keep_every}; leave it out to keep none"
            )

    def dropped(
        self, checkpoints: Iterable[CheckpointEntry], known: Collection[tuple[int, int]]
    ) -> tuple[CheckpointEntry, ...]:
        """Return those of `checkpoints` that may go; `known` are the (step, attempt) that were seen whole."""
        newest_first = sorted(checkpoints, key=lambda entry: entry.order, reverse=True)
        counted = [entry for entry in newest_first if entry.order in known]
        if len(counted) < self.keep_last:
            return ()
        oldest_kept, for_ever = counted[self.keep_last - 1], self._for_ever(newest_first)
        return tuple(
            entry for entry in newest_first if entry.order < oldest_kept.order and entry.order not in for_ever
        )

    def _for_ever(self, newest_first: Sequence[CheckpointEntry]) -> set[tuple[int, int]]:
        if self.keep_every is None:
            return set()
        firsts = {entry.step // self.keep_every: entry.order for entry in newest_first}
        firsts.pop(0, None)
        # One at the very step is kept whichever attempt made it: the first of them might be broken.
        exact = {entry.order for entry in newest_first if entry.step % self.keep_every == 0}
        return exact | set(firsts.values())


def unneeded_segments(dropped: Iterable[CheckpointEntry], kept: Iterable[CheckpointEntry]) -> tuple[str, ...]:
    """Names of the segments that only dropped checkpoints needed."""
    needed = {segment.name for entry in kept for segment in entry.segments}
    return tuple(sorted({segment.name for entry in dropped for segment in entry.segments} - needed))
