"""Filters over 128-bit keys: pages of one size, which say for a whole batch at once where each key may be.

A page is a Bloom filter in two words of 64 bits: four bits in each. With 16 bits a key it is wrong once in a
thousand times, and a key that it does not know is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KEY_BYTES", "PAGE_KEYS", "Columns", "Pages", "Probe", "columns", "hits"]

KEY_BYTES = 16
PAGE_KEYS = 4096
"""How many keys a page is made for. A few more only make it wrong more often."""

_WORD_BITS = 10
_WORDS = 1 << _WORD_BITS
_MASK = np.uint64(_WORDS - 1)
_SHIFTS = (0, 6, 12, 18)

Columns: TypeAlias = "npt.NDArray[np.uint64]"
_Places: TypeAlias = "npt.NDArray[np.int64]"


def columns(keys: bytes) -> Columns:
    """Return keys as rows of two numbers, without copying them."""
    return np.frombuffer(keys, dtype="<u8").reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class Probe:
    """What is looked at for each key, whichever page it is: two words, and the bits that both must have.

    They come of the key's last 104 bits: which page it is, of the 24 before.
    """

    first: _Places
    first_bits: Columns
    second: _Places
    second_bits: Columns

    @classmethod
    def of(cls, keys: Columns) -> Probe:
        """Return the probe of keys, in their order."""
        high, low = keys[:, 0], keys[:, 1]
        return cls(
            (low & _MASK).astype(np.int64),
            _bits(low >> np.uint64(2 * _WORD_BITS)),
            (low >> np.uint64(_WORD_BITS) & _MASK).astype(np.int64),
            _bits(high),
        )


class Pages:
    """Pages in one piece of memory. Page 0 is nobody's and stays empty."""

    def __init__(self) -> None:
        self._words = np.zeros(2 * _WORDS, dtype=np.uint64)
        self._next = 1
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return self._words.nbytes

    def new(self, content: bytes | None = None) -> int:
        """Return the number of a new page, an empty one unless it is given its content."""
        if self._free:
            page = self._free.pop()
        else:
            page, self._next = self._next, self._next + 1
            if self._next * _WORDS > len(self._words):
                grown = np.zeros((self._next + self._next // 4 + 1) * _WORDS, dtype=np.uint64)
                grown[: len(self._words)] = self._words
                self._words = grown
        self._of(page)[:] = 0 if content is None else np.frombuffer(content, dtype="<u8")
        return page

    def free(self, page: int) -> None:
        """Let a page be made anew."""
        self._free.append(page)

    def add(self, page: int, probe: Probe) -> None:
        """Enter keys into a page."""
        words = self._of(page)
        np.bitwise_or.at(words, probe.first, probe.first_bits)
        np.bitwise_or.at(words, probe.second, probe.second_bits)

    def content(self, page: int) -> bytes:
        """Return a page as it is stored."""
        return self._of(page).astype("<u8").tobytes()

    def hits(self, pages: npt.NDArray[np.int32] | int, probe: Probe) -> Sequence[int]:
        """Return which keys may be in their pages: one for each key, or one for all."""
        base = np.asarray(pages, dtype=np.int64) * _WORDS
        found = np.flatnonzero((self._words[base + probe.first] & probe.first_bits) == probe.first_bits)
        if not len(found):
            return ()
        base, bits = (base if base.ndim == 0 else base[found]), probe.second_bits[found]
        both = (self._words[base + probe.second[found]] & bits) == bits
        return found[both].tolist()  # type: ignore[no-any-return]

    def _of(self, page: int) -> Columns:
        return self._words[page * _WORDS : (page + 1) * _WORDS]


def hits(keys: Columns, stored: bytes) -> Sequence[int]:
    """Return which keys are exactly among stored ones."""
    there = columns(stored)
    if len(keys) <= 4:
        return [
            at for at, (high, low) in enumerate(keys) if np.any((there[:, 0] == high) & (there[:, 1] == low))
        ]
    wide = np.dtype((np.bytes_, KEY_BYTES))
    same = np.isin(np.ascontiguousarray(keys).view(wide)[:, 0], there.view(wide)[:, 0])
    return np.flatnonzero(same).tolist()


def _bits(source: Columns) -> Columns:
    bits = np.zeros(len(source), dtype=np.uint64)
    for shift in _SHIFTS:
        bits |= np.uint64(1) << (source >> np.uint64(shift) & np.uint64(63))
    return bits
