"""A run's points as the lines of its panels: at most so many buckets along x as there are pixels.

A bucket has the lowest, highest and last value of its points, so that one spike among all of a run's points
is seen. What is not drawn is counted: points without the panel's x, values that a logarithmic axis has no
place for. A line is broken where a value is hidden, and where a point lacks the key that most points with the
same other keys have: a NaN was written there, say. An attempt that repeats an x replaces what older ones
wrote there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from runtime.telemetry.layout import Panel

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

__all__ = ["Columns", "Window", "gather", "plot"]

_MAX_KINDS = 1024
_ANY_OTHER = frozenset({""})
"""Stands for every set of keys past the first ones: no point has this key."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is looked at along x, both ends included; None is as far as it goes."""

    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """A run's points, in their order. NaN where a point lacks the key.

    `kinds` says for each point which of `kind_keys` it has: the set of all its keys, whatever was asked for.
    `attempts` says for each which of `numbers` its attempt has.
    """

    seqs: NDArray[np.int64]
    attempts: NDArray[np.int64]
    numbers: Sequence[int]
    values: Mapping[str, Floats]
    kinds: NDArray[np.int64]
    kind_keys: Sequence[frozenset[str]]

    def __len__(self) -> int:
        return len(self.seqs)


class _Kinds:
    """Sets of keys, numbered as they come. A run may have as many as it has points: the first ones count."""

    def __init__(self) -> None:
        self.by_set = {_ANY_OTHER: 0}
        self._by_order: dict[tuple[str, ...], int] = {}

    def of(self, point: Mapping[str, Any]) -> int:
        order = tuple(point)
        found = self._by_order.get(order)
        return self._number(order) if found is None else found

    def _number(self, order: tuple[str, ...]) -> int:
        if len(self._by_order) >= _MAX_KINDS:
            return self.by_set.get(frozenset(order), 0)
        found = self.by_set.setdefault(frozenset(order), len(self.by_set))
        self._by_order[order] = found
        return found


def gather(
    parts: Iterable[Sequence[Mapping[str, float]]],
    keys: Collection[str],
    attempts: Sequence[tuple[int, int]] = (),
) -> Columns:
    """Return the columns of `keys` of a run's points, which come in parts from seq 1 on without a hole.

    `attempts` are those known, in order, each with the last seq before it.
    """
    kinds = _Kinds()
    columns: dict[str, list[Floats]] = {key: [] for key in keys}
    numbers: list[NDArray[np.int64]] = []
    for part in parts:
        numbers.append(np.fromiter(map(kinds.of, part), dtype=np.int64, count=len(part)))
        for key, column in columns.items():
            column.append(np.array([point.get(key, np.nan) for point in part], dtype=np.float64))
    joined = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int64)
    seqs = np.arange(1, len(joined) + 1)
    befores = np.array([after_seq for _, after_seq in attempts], dtype=np.int64)
    return Columns(
        seqs,
        np.searchsorted(befores, seqs),
        [0, *(number for number, _ in attempts)],
        {key: np.concatenate(column) if column else np.zeros(0) for key, column in columns.items()},
        joined,
        list(kinds.by_set),
    )


def plot(columns: Columns, panel: Panel, *, width: int, window: Window | None = None) -> dict[str, Any]:
    """Return the lines of a panel as columns (see `_line` for one), and where later attempts begin."""
    window = window or Window()
    lines = [_placed(columns, panel, key) for key in panel.y]
    drawn = [line.x[line.drawn & _within(line.x, window)] for line in lines]
    ends = [x[place] for x in drawn if len(x) for place in (0, -1)]
    span = (min(ends), max(ends)) if ends else (0.0, 0.0)
    return {
        "lines": [_line(line, span, width, window) for line in lines],
        "attempts": list(_begins_of_attempts(columns, panel)),
    }


def _begins_of_attempts(columns: Columns, panel: Panel) -> Iterator[dict[str, Any]]:
    """Yield the x of the first point of each attempt but the first that wrote any."""
    x = _x(columns, panel)
    placed = np.flatnonzero(~np.isnan(x))
    attempts = columns.attempts[placed]
    for at in np.flatnonzero(attempts[1:] != attempts[:-1]) + 1:
        yield {"attempt": columns.numbers[attempts[at]], "x": x[placed[at]]}


def _x(columns: Columns, panel: Panel) -> Floats:
    return columns.seqs.astype(np.float64) if panel.x is None else columns.values[panel.x]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A key's places along x, in order: its points, and the `holes` where a point lacks it.

    `drawn` are those points that the axis has a place for.
    """

    key: str
    x: Floats
    y: Floats
    drawn: Bools
    points: int
    without_x: int
    hidden: int


def _placed(columns: Columns, panel: Panel, key: str) -> _Placed:
    y = columns.values[key]
    there = ~np.isnan(y)
    x = _x(columns, panel)
    has_x = ~np.isnan(x)
    kept = np.flatnonzero(has_x & (there | _holes(columns, key)))
    if panel.x is not None:
        kept = kept[np.argsort(x[kept], kind="stable")]
        kept = kept[_newest(x[kept], columns.attempts[kept], there[kept])]
    x, y = x[kept], y[kept]
    fits = y > 0 if panel.scale == "log" else ~np.isnan(y)
    return _Placed(
        key,
        x,
        y,
        fits,
        points=int(there.sum()),
        without_x=int((there & ~has_x).sum()),
        hidden=int((~np.isnan(y) & ~fits).sum()),
    )


def _holes(columns: Columns, key: str) -> Bools:
    """Return which points lack the key although most of their kind, the key added, have it."""
    counts = np.bincount(columns.kinds, minlength=len(columns.kind_keys))
    numbers = {keys: number for number, keys in enumerate(columns.kind_keys)}
    lacking = []
    for number, keys in enumerate(columns.kind_keys):
        fuller = numbers.get(keys | {key})
        if key not in keys and fuller is not None and counts[number] <= counts[fuller]:
            lacking.append(number)
    return np.isin(columns.kinds, lacking)


def _newest(x: Floats, attempts: NDArray[np.int64], there: Bools) -> Bools:
    """Return what stands at each x, which is sorted: the newest attempt's, and no hole beside a point."""
    if not len(x):
        return there
    begins = np.flatnonzero(np.append([True], x[1:] != x[:-1]))
    sizes = np.diff(np.append(begins, len(x)))
    kept = attempts == np.repeat(np.maximum.reduceat(attempts, begins), sizes)
    has_point = np.repeat(np.logical_or.reduceat(there & kept, begins), sizes)
    found: Bools = kept & (there | ~has_point)
    return found


def _within(x: Floats, window: Window) -> Bools:
    inside = np.ones(len(x), dtype=np.bool_)
    if window.first is not None:
        inside &= x >= window.first
    if window.last is not None:
        inside &= x <= window.last
    return inside


def _line(line: _Placed, span: tuple[float, float], width: int, window: Window) -> dict[str, Any]:
    """Return a line as columns of its buckets: `x` of the last point of each, its min, max and last value.

    `breaks` are the buckets that are not joined to the one before. `points` carry the key, `without_x` of
    them are left off, and `hidden` ones have no place on a logarithmic axis.
    """
    places = np.flatnonzero(line.drawn)
    broken = np.append([True], np.diff(places) > 1)[: len(places)]
    inside = np.flatnonzero(_within(line.x[places], window))
    if len(inside):  # one more on each side, so that a line reaches the edge
        kept = slice(max(0, inside[0] - 1), inside[-1] + 2)
        places, broken = places[kept], broken[kept]
    else:
        places, broken = places[:0], broken[:0]
    x, y = line.x[places], line.y[places]
    begins = _begins(x, span, width)
    ends = np.append(begins[1:], len(x))[: len(begins)] - 1
    return {
        "key": line.key,
        "points": line.points,
        "without_x": line.without_x,
        "hidden": line.hidden,
        "x": x[ends],
        "min": np.minimum.reduceat(y, begins) if len(y) else y,
        "max": np.maximum.reduceat(y, begins) if len(y) else y,
        "last": y[ends],
        "breaks": np.flatnonzero(broken[begins[1:]]) + 1,
    }


def _begins(x: Floats, span: tuple[float, float], width: int) -> NDArray[np.int64]:
    """Return where each bucket begins: each point is one of its own while there are no more than pixels."""
    if len(x) <= width:
        return np.arange(len(x))
    low, high = span[0] / 2, span[1] / 2  # halves: their difference is finite
    bucket = np.floor((x / 2 - low) / ((high - low) or 1.0) * (width - 1))
    return np.flatnonzero(np.append([True], bucket[1:] != bucket[:-1]))
