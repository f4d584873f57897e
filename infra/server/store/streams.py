"""Streams: the points of a series along an axis, a frame at a time, holding no more of it than overlaps.

What arrived in order is read a chunk at a time. Where attempts repeated steps, chunks overlap along the axis:
those that do are merged, and what lies before the next one goes out. Each chunk is read in a view of its own,
so a slow reader holds no view of the database; what arrives meanwhile is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from infra.server.store import blocks
from infra.server.store.blocks import CHUNK_POINTS, Block
from infra.server.store.points import Points, join, newest_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from sqlalchemy import Connection

    from infra.server.store.points import Axis
    from infra.server.store.series import Series

__all__ = ["FRAME_POINTS", "Order", "stream", "stream_each"]

T = TypeVar("T")
FRAME_POINTS = 8192
_MERGED_POINTS = 16 * CHUNK_POINTS
"""So many points may wait for the next chunk before those that come before it are sorted out."""


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
    """Yield all points in order, each part after the one before it along the axis."""
    waiting = _Waiting(order)
    for block in _in_order(_joined(reads(lambda view: blocks.layout(view, one.id)), one.num_points), order):
        low, high = _span(block, order)
        if (ready := waiting.before(low)) is not None:
            yield ready
        points = reads(lambda view, block=block: blocks.read(view, one.id, block.first, block.end))  # type: ignore[misc]
        waiting.add(_Arrived(points, np.arange(block.first, block.end)), high)
    if (rest := waiting.rest()) is not None:
        yield rest


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


def _span(block: Block, order: Order) -> tuple[int, int]:
    """Return where a block begins and ends in the order that is asked for."""
    low, high = block.span(order.axis)
    return (-high, -low) if order.descending else (low, high)


def _in_order(found: list[Block], order: Order) -> list[Block]:
    return sorted(found, key=lambda block: _span(block, order))


def _sorted(part: _Arrived, order: Order) -> _Arrived:
    keys = part.points.key(order.axis)
    if (keys[1:] < keys[:-1]).any() or (part.arrivals[1:] < part.arrivals[:-1]).any():
        part = part.take(np.lexsort((part.arrivals, keys)))
    if order.newest is not None and order.axis == "step":
        part = part.take(newest_copies(part.points, order.newest))
    return part.take(np.arange(len(part.arrivals))[::-1]) if order.descending else part


@dataclass(slots=True)
class _Waiting:
    """Points that later blocks may have to come between."""

    order: Order
    parts: list[_Arrived] = field(default_factory=list)
    high: int = 0
    num_points: int = 0
    enough: int = _MERGED_POINTS

    def add(self, part: _Arrived, high: int) -> None:
        """Take the points of a block; `high` is where they end."""
        self.high = max(self.high, high) if self.parts else high
        self.parts.append(part)
        self.num_points += len(part.arrivals)

    def before(self, low: int) -> _Arrived | None:
        """Return what lies before the next block, if that is all there is or if there is much of it."""
        if not self.parts:
            return None
        if self.high < low:
            return self.rest()
        if self.num_points < self.enough:
            return None
        joined = self._joined()
        keys = joined.points.key(self.order.axis)
        ready = (-keys if self.order.descending else keys) < low
        left = joined.take(~ready)
        self.parts, self.num_points = [left], len(left.arrivals)
        self.enough = max(_MERGED_POINTS, 2 * self.num_points)
        return _sorted(joined.take(ready), self.order) if ready.any() else None

    def rest(self) -> _Arrived | None:
        """Return everything that waits."""
        if not self.parts:
            return None
        joined = self._joined()
        self.parts, self.num_points, self.enough = [], 0, _MERGED_POINTS
        return _sorted(joined, self.order)

    def _joined(self) -> _Arrived:
        if len(self.parts) == 1:
            return self.parts[0]
        arrivals = np.concatenate([part.arrivals for part in self.parts])
        return _Arrived(join(part.points for part in self.parts), arrivals)
