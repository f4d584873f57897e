"""Curves to look at: one value a step, the newest attempt's, in as many buckets as there are pixels.

A long series is drawn from its chunks' summaries, and only where these cannot tell is it unpacked: where
attempts repeat each other's steps, and at the edges of a window. So a bucket holds exactly the points between
its last step and that of the one before it, and its width is a pixel's, give or take a group of 128 points.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from infra.server.store import blocks, summaries
from infra.server.store.points import NO_STEP, Points, join, newest_copies
from infra.server.store.summaries import MIXED, Groups
from runtime.events.limits import MAX_STEP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from sqlalchemy import Connection

    from infra.server.store.series import Series

__all__ = ["EXACT_POINTS", "Curve", "Drawing", "Window", "buckets", "load"]

EXACT_POINTS = 8 * blocks.CHUNK_POINTS
"""So many points are drawn one by one: it takes 10 ms."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that are looked at, both ends included."""

    first: int = 0
    last: int = MAX_STEP


@dataclass(frozen=True, slots=True)
class Curve:
    """Pieces of a curve along the step, as columns of equal length: a point each, or some neighbours."""

    first: NDArray[np.int64]
    step: NDArray[np.int64]
    least: NDArray[np.float64]
    greatest: NDArray[np.float64]
    last: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A series as far as it has to be read to draw it. `points` are unpacked already, `groups` are not.

    `begins` and `counts` say which arrivals each group holds, `chunks` where each chunk's groups begin.
    """

    connection: Connection
    series_id: int
    window: Window
    points: Points
    groups: Groups | None
    begins: NDArray[np.int64]
    counts: NDArray[np.int64]

    def sessions(self) -> set[int]:
        """Return the sessions that wrote what is looked at."""
        found = set(np.unique(self.points.sessions).tolist())
        if self.groups is not None:
            found.update(np.unique(self.groups.sessions).tolist())
            if MIXED in found:
                found.update(np.unique(self._unpacked(self.groups.sessions == MIXED).sessions).tolist())
        return found - {MIXED}

    def curve(self, ranks: Mapping[int, int], *, width: int, of: Sequence[int] | None = None) -> Curve:
        """Return the newest copy of each step along the steps, of certain sessions alone if they are given.

        `ranks` gives the place of each session in the order in which they began.
        """
        if self.groups is None:
            return _of_points(self._chosen(self.points, of), ranks)
        kept = np.flatnonzero(self._looked_at(of))
        clear = _clear(self.groups.take(kept), self.window, width, mixed=of is None)
        unclear = np.zeros(len(self.groups), dtype=np.bool_)
        unclear[kept[~clear]] = True
        found = _of_points(self._chosen(join([self._unpacked(unclear), self.points]), of), ranks)
        return _merged(_of_groups(self.groups.take(kept[clear])), found)

    def _looked_at(self, of: Sequence[int] | None) -> NDArray[np.bool_]:
        """Return which groups may hold points that are looked at."""
        assert self.groups is not None
        inside = (self.groups.high >= self.window.first) & (self.groups.low <= self.window.last)
        if of is None:
            return inside
        return inside & np.isin(self.groups.sessions, [*of, MIXED])

    def _chosen(self, points: Points, of: Sequence[int] | None) -> Points:
        kept = (points.steps >= self.window.first) & (points.steps <= self.window.last)
        kept &= points.steps != NO_STEP
        if of is not None:
            kept &= np.isin(points.sessions, of)
        return points if kept.all() else points.take(kept)

    def _unpacked(self, wanted: NDArray[np.bool_]) -> Points:
        """Return the points of those groups, in order of arrival: neighbours are read together."""
        places = np.flatnonzero(wanted)
        parts = []
        for run in np.split(places, np.flatnonzero(np.diff(self.begins[places]) > blocks.CHUNK_POINTS) + 1):
            if len(run):
                begin, end = int(self.begins[run[0]]), int(self.begins[run[-1]] + self.counts[run[-1]])
                points = blocks.read(self.connection, self.series_id, begin, end)
                parts.append(points.take(_covered(self.begins[run] - begin, self.counts[run], len(points))))
        return join(parts)


def load(connection: Connection, one: Series, window: Window) -> Drawing:
    """Read what it takes to draw a series within the connection's view."""
    layout = [
        block
        for block in blocks.layout(connection, one.id)
        if block.max_step >= window.first and block.min_step <= window.last
    ]
    if sum(block.count for block in layout) <= EXACT_POINTS:
        points = join(blocks.read(connection, one.id, begin, end) for begin, end in _runs(layout))
        return Drawing(connection, one.id, window, points, None, *_NOTHING)
    small = [block for block in layout if not block.has_summary]
    chunks = blocks.summaries_of(connection, one.id, first_step=window.first, last_step=window.last)
    extents = [(first, first + count) for first, count, _ in chunks]
    groups = [groups for _, _, groups in chunks]
    for begin, end in _runs(small):
        extents.append((begin, end))
        groups.append(summaries.summarise(blocks.read(connection, one.id, begin, end)))
    begins = [np.arange(begin, end, summaries.GROUP_POINTS) for begin, end in extents]
    ends = [np.append(each[1:], end) for each, (_, end) in zip(begins, extents, strict=True)]
    joined, firsts = summaries.join(groups), np.concatenate(begins)
    return Drawing(connection, one.id, window, join(()), joined, firsts, np.concatenate(ends) - firsts)


def buckets(curve: Curve, width: int) -> dict[str, Any]:
    """Return a curve of at most `width` buckets along the step: the last step of each, its min, max and last.

    A curve of no more pieces than that comes as it is.
    """
    if len(curve) <= width:
        return {"step": curve.step, "min": curve.least, "max": curve.greatest, "last": curve.last}
    first, span = curve.first[0], float(curve.step[-1] - curve.first[0]) + 1
    bucket = np.floor((curve.step - first) / span * width).astype(np.int64)
    begins = np.flatnonzero(np.append([True], bucket[1:] != bucket[:-1]))
    ends = np.append(begins[1:], len(bucket)) - 1
    return {
        "step": curve.step[ends],
        "min": np.minimum.reduceat(curve.least, begins),
        "max": np.maximum.reduceat(curve.greatest, begins),
        "last": curve.last[ends],
    }


_NOTHING = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def _runs(layout: Sequence[blocks.Block]) -> Iterator[tuple[int, int]]:
    """Yield the arrivals of blocks, those of neighbours as one."""
    begin = None
    for block, following in pairwise([*layout, None]):
        assert block is not None
        begin = block.first if begin is None else begin
        if following is None or following.first != block.end:
            yield begin, block.end
            begin = None


def _covered(offsets: NDArray[np.int64], counts: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Return which of `length` points lie in any of the ranges."""
    edges = np.zeros(length + 1, dtype=np.int64)
    np.add.at(edges, offsets, 1)
    np.add.at(edges, offsets + counts, -1)
    return np.cumsum(edges[:-1]) > 0


def _clear(groups: Groups, window: Window, width: int, *, mixed: bool) -> NDArray[np.bool_]:
    """Return which groups stand for their points: no step of theirs is anywhere else, and none is outside.

    `mixed` says that it does not matter whose they are.
    """
    if not len(groups):
        return np.zeros(0, dtype=np.bool_)
    order = np.argsort(groups.low, kind="stable")
    low, high = groups.low[order], groups.high[order]
    apart = low[1:] > np.maximum.accumulate(high)[:-1]
    clear = np.empty(len(groups), dtype=np.bool_)
    clear[order] = np.append([True], apart) & np.append(apart, [True])
    clear &= (groups.climbs == 1) & (groups.low >= window.first) & (groups.high <= window.last)
    pixel = (int(high.max()) - int(low[0])) / width
    clear &= groups.high - groups.low <= pixel
    return clear if mixed else clear & (groups.sessions != MIXED)


def _of_points(points: Points, ranks: Mapping[int, int]) -> Curve:
    kept = points.take(newest_copies(points, ranks))
    return Curve(kept.steps, kept.steps, kept.values, kept.values, kept.values)


def _of_groups(groups: Groups) -> Curve:
    return Curve(groups.low, groups.high, groups.least, groups.greatest, groups.last)


def _merged(one: Curve, other: Curve) -> Curve:
    """Return two curves that share no step as one."""
    columns = [
        np.concatenate((getattr(one, name), getattr(other, name))) for name in Curve.__dataclass_fields__
    ]
    order = np.argsort(columns[1], kind="stable")
    return Curve(*[column[order] for column in columns])
