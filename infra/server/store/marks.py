"""Which message ids of one sender were applied: one number and the gaps below it."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Marks"]


class Marks:
    """A set of sequence numbers that costs memory for its gaps only.

    `next` is one past the highest applied number. `holes` are the closed ranges below it that were not
    applied, ascending and apart. `changed` holds what must be rewritten where the holes are stored: the first
    number of every hole that was made, cut or filled since `flushed()`, whatever became of it.
    """

    def __init__(self, next_sequence: int = 0, holes: Iterable[tuple[int, int]] = ()) -> None:
        self.next = next_sequence
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in holes:
            self._firsts.append(first)
            self._lasts.append(last)
        self.changed: set[int] = set()

    @property
    def holes(self) -> list[tuple[int, int]]:
        """The ranges below `next` that were not applied."""
        return list(zip(self._firsts, self._lasts, strict=True))

    @property
    def num_holes(self) -> int:
        """How many there are."""
        return len(self._firsts)

    def __contains__(self, sequence: int) -> bool:
        if sequence >= self.next:
            return False
        at = self._at(sequence)
        return at < 0 or sequence > self._lasts[at]

    def add(self, sequence: int) -> None:
        """Remember that `sequence`, which was not applied before, now is."""
        if sequence >= self.next:
            if sequence > self.next:
                self._insert(len(self._firsts), self.next, sequence - 1)
            self.next = sequence + 1
            return
        at = self._at(sequence)
        assert at >= 0
        assert sequence <= self._lasts[at], "added twice"
        first, last = self._firsts[at], self._lasts[at]
        del self._firsts[at], self._lasts[at]
        self.changed.add(first)
        if sequence < last:
            self._insert(at, sequence + 1, last)
        if first < sequence:
            self._insert(at, first, sequence - 1)

    def add_ascending(self, sequences: Sequence[int]) -> None:
        """Remember numbers that ascend from `next` on: what a sender sends for the first time.

        Those of a range follow one another.
        """
        assert sequences[0] >= self.next
        run = self.next
        for sequence in sequences[:1] if isinstance(sequences, range) else sequences:
            if sequence > run:
                self._insert(len(self._firsts), run, sequence - 1)
            run = sequence + 1
        self.next = sequences[-1] + 1

    def flushed(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the holes to delete, by first number, and those to store, and forget that they changed."""
        deleted = sorted(self.changed)
        found = [(first, self._at(first)) for first in deleted]
        stored = [(first, self._lasts[at]) for first, at in found if at >= 0 and self._firsts[at] == first]
        self.changed = set()
        return deleted, stored

    def _at(self, sequence: int) -> int:
        """The hole that begins at or before `sequence`, or -1."""
        return bisect_right(self._firsts, sequence) - 1

    def _insert(self, at: int, first: int, last: int) -> None:
        self._firsts.insert(at, first)
        self._lasts.insert(at, last)
        self.changed.add(first)
