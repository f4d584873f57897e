"""Streams: the points of a series along an axis, a frame at a time; about a million at most are held.

What arrived in order is read a chunk at a time. Where attempts repeated steps, chunks overlap along the axis:
those that do are merged, and what lies before the next one goes out. What arrived in no order at all is read
several times, each time for the part that comes next. Each chunk is read in a view of its own, so a slow
reader holds no view of the database; what arrives meanwhile is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from infra.server.store import blocks
from infra.server.store.blocks import CHUNK_POINTS, Block
from infra.server.store.points import NO_STEP, Points, join, newest_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from sqlalchemy import Connection

    from infra.server.store.points import Axis
    from infra.server.store.series import Series

__all__ = ["FRAME_POINTS", "Order", "stream", "stream_each"]

T = TypeVar("T")
FRAME_POINTS = 8192
_HELD_POINTS = 16 * CHUNK_POINTS
"""So many points may wait for the next chunk before those that come before it are sorted out."""
_FAR = 2**62
_Place: TypeAlias = tuple[int, int]
"""Where a point stands in an order: along the axis, then by arrival; both negated where it descends."""


class Reads(Protocol):
    """Runs work over one consistent view of the database: `Store.read_now`."""

    def __call__(self, work: Callable[[Connection], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class Order:
    """How points come: up an axis, what is equal there in order of arrival, or the exact reverse.

    `newest` holds the place of each session in the order in which they began: of every step comes the newest
    session's copy only. Unset, all copies come. Points without a step come before all others.
    """

    axis: Axis = "step"
    descending: bool = False
    newest: Mapping[int, int] | None = None

    @property
    def sign(self) -> int:
        """What makes places along the axis grow in this order: -1 where it is descending."""
        return -1 if self.descending else 1


@dataclass(frozen=True, slots=True)
class _Arrived:
    """Points with the place of each in order of arrival."""

    points: Points
    arrivals: NDArray[np.int64]

    def take(self, index: NDArray[Any]) -> _Arrived:
        return _Arrived(self.points.take(index), self.arrivals[index])


def stream(reads: Reads, one: Series, order: Order, *, frame_points: int = FRAME_POINTS) -> Iterator[Points]:
    """Yield the points that a series has now in frames of at most `frame_points`."""
    for part in _ordered(reads, one, order):
        yield from _frames(part.points, frame_points)


def stream_each(
    reads: Reads, found: Iterable[Series], order: Order, *, frame_points: int = FRAME_POINTS
) -> Iterator[tuple[Series, Points]]:
    """Yield the frames of several series, one after another. Small ones are read together."""
    small: list[Series] = []
    waiting = 0
    for one in found:
        if one.num_points > frame_points:
            yield from _small(reads, small, order)
            small, waiting = [], 0
            for frame in stream(reads, one, order, frame_points=frame_points):
                yield one, frame
            continue
        small.append(one)
        waiting += one.num_points
        if waiting >= CHUNK_POINTS or len(small) >= 256:
            yield from _small(reads, small, order)
            small, waiting = [], 0
    yield from _small(reads, small, order)


def _small(reads: Reads, found: Sequence[Series], order: Order) -> Iterator[tuple[Series, Points]]:
    def read(connection: Connection) -> list[Points]:
        return [blocks.read(connection, one.id, 0, one.num_points) for one in found]

    plain = Order(order.axis, descending=order.descending)
    for one, points in zip(found, reads(read) if found else (), strict=True):
        part = _Arrived(points, np.arange(len(points)))
        if order.newest is not None:
            part = part.take(np.sort(newest_copies(points, order.newest)))
        if len(points):
            yield one, _sorted(part, plain).points


def _frames(points: Points, frame_points: int) -> Iterator[Points]:
    for first in range(0, len(points), frame_points):
        yield points.take(slice(first, first + frame_points))


def _ordered(reads: Reads, one: Series, order: Order) -> Iterator[_Arrived]:
    if order.newest is None or order.axis == "step":
        yield from _merged(reads, one, order)
        return
    # Copies of a step lie anywhere in time: which of them to keep is found along the steps first.
    keep = np.zeros(one.num_points, dtype=np.bool_)
    for part in _merged(reads, one, Order("step", newest=order.newest)):
        keep[part.arrivals] = True
    for part in _merged(reads, one, Order(order.axis, descending=order.descending)):
        yield part.take(keep[part.arrivals])


def _merged(reads: Reads, one: Series, order: Order) -> Iterator[_Arrived]:
    """Yield all points in order, each part after the one before it.

    Where more of them overlap than are held, the last are let go of. What is up to the limit that this makes
    goes out, and the blocks that reach beyond it are read once more.
    """
    found = _joined(reads(lambda view: blocks.layout(view, one.id)), one.num_points)
    spans = sorted((*_span(block, order), block.first, block.end) for block in found)
    after: _Place | None = None
    while spans:
        held = _Held(order, after)
        for low, high, first, end in spans:
            if held.limit is not None and low > held.limit:
                break
            if (ready := held.before(low)) is not None:
                yield ready
            points = reads(partial(blocks.read, series_id=one.id, first=first, end=end))
            held.add(_Arrived(points, np.arange(first, end)), high)
        if (rest := held.rest()) is not None:
            yield rest
        after = held.limit
        spans = [span for span in spans if after is not None and span[1] > after]


def _joined(layout: Sequence[Block], num_points: int) -> list[Block]:
    """Return the first `num_points` points as blocks, neighbours that are small as one."""
    found: list[Block] = []
    for block in layout:
        if block.first >= num_points:
            break
        last = found[-1] if found else None
        if last is not None and last.count + block.count <= CHUNK_POINTS:
            found[-1] = Block(
                last.first,
                last.count + block.count,
                min(last.min_step, block.min_step),
                max(last.max_step, block.max_step),
                min(last.min_ms, block.min_ms),
                max(last.max_ms, block.max_ms),
                has_summary=False,
            )
        else:
            found.append(block)
    return [_cut(block, num_points) for block in found]


def _cut(block: Block, num_points: int) -> Block:
    if block.end <= num_points:
        return block
    spans = (block.min_step, block.max_step, block.min_ms, block.max_ms)
    return Block(block.first, num_points - block.first, *spans, block.has_summary)


def _span(block: Block, order: Order) -> tuple[_Place, _Place]:
    """Return the places between which the points of a block are, both included."""
    low, high = block.span(order.axis)
    if order.descending:
        return (-high, 1 - block.end), (-low, -block.first)
    return (low, block.first), (high, block.end - 1)


def _up_to(part: _Arrived, place: _Place, order: Order) -> NDArray[np.bool_]:
    """Say of each point whether it is at or before a place."""
    key, arrival = place
    keys, arrivals = order.sign * part.points.key(order.axis), order.sign * part.arrivals
    up_to: NDArray[np.bool_] = (keys < key) | ((keys == key) & (arrivals <= arrival))
    return up_to


def _sorted(part: _Arrived, order: Order) -> _Arrived:
    keys = part.points.key(order.axis)
    if (keys[1:] < keys[:-1]).any() or (part.arrivals[1:] < part.arrivals[:-1]).any():
        part = part.take(np.lexsort((part.arrivals, keys)))
    if order.newest is not None and order.axis == "step":
        part = part.take(newest_copies(part.points, order.newest))
    return part.take(np.arange(len(part.arrivals))[::-1]) if order.descending else part


class _Held:
    """What one pass holds: points after `after`, up to `limit`, that a later block may still come between."""

    def __init__(self, order: Order, after: _Place | None) -> None:
        self.limit: _Place | None = None
        self._order = order
        self._after = after
        self._parts: list[_Arrived] = []
        self._num_points = 0
        self._high: _Place = (-_FAR, -_FAR)

    def add(self, part: _Arrived, high: _Place) -> None:
        """Take what belongs to this pass of the points of a block that ends at `high`."""
        if self._after is not None:
            part = part.take(~_up_to(part, self._after, self._order))
        if self.limit is not None:
            part = part.take(_up_to(part, self.limit, self._order))
        self._parts.append(part)
        self._num_points += len(part.arrivals)
        self._high = max(self._high, high)

    def before(self, low: _Place) -> _Arrived | None:
        """Return what comes before a block that begins at `low`, if that is all or if there is much."""
        key, arrival = low
        last = (key, -_FAR if self._keeps_whole_steps(key) else arrival - 1)
        if self._high <= last:
            return self.rest()
        if self._num_points < _HELD_POINTS:
            return None
        held = self._taken()
        is_ready = _up_to(held, last, self._order)
        if not is_ready.any():
            self._put_back(held)
            return None
        self._put_back(held.take(~is_ready))
        return _sorted(held.take(is_ready), self._order)

    def rest(self) -> _Arrived | None:
        """Return everything that is held."""
        return _sorted(self._taken(), self._order) if self._num_points else None

    def _taken(self) -> _Arrived:
        parts, self._parts, self._num_points = self._parts, [], 0
        if len(parts) == 1:
            return parts[0]
        arrivals = np.concatenate([part.arrivals for part in parts])
        return _Arrived(join(part.points for part in parts), arrivals)

    def _put_back(self, part: _Arrived) -> None:
        """Hold what is not ready, and no more than half of what may be held."""
        if len(part.arrivals) > _HELD_POINTS // 2:
            part = _sorted(part, self._order)
        if len(part.arrivals) > _HELD_POINTS // 2:
            part = part.take(np.arange(_HELD_POINTS // 2))  # a slice would keep the rest in memory
            key = self._order.sign * int(part.points.key(self._order.axis)[-1])
            arrival = self._order.sign * int(part.arrivals[-1])
            self.limit = (key, _FAR if self._keeps_whole_steps(key) else arrival)
        self._parts, self._num_points = [part], len(part.arrivals)

    def _keeps_whole_steps(self, key: int) -> bool:
        """Whether the copies of a step must stay together, so that the newest of them can be told."""
        return self._order.newest is not None and key != self._order.sign * NO_STEP
