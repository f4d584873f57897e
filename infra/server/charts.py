"""Curves to look at: one value a step, the newest attempt's, in as many buckets as there are pixels."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from infra.server.store import series

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

    from infra.server.store.series import Points, Series

__all__ = ["PointCache", "buckets", "newest_copies", "own_copies"]


class PointCache:
    """Points that were read before, so that a page that asks again costs what is new since.

    Points are only ever appended, so what is kept stays true. `max_points` (32 bytes each) bounds it; the
    series asked for longest ago goes first. Lives as long as the application; any thread may ask.
    """

    def __init__(self, *, max_points: int = 4_000_000) -> None:
        self._max_points = max_points
        self._kept: OrderedDict[int, Points] = OrderedDict()
        self._num_points = 0
        self._lock = threading.Lock()

    def read(self, connection: Connection, one: Series) -> Points:
        """Return the points that the series has in the connection's view, at the least."""
        with self._lock:
            kept = self._kept.get(one.id)
        num_kept = 0 if kept is None else len(kept.steps)
        if kept is not None and num_kept >= one.num_points:
            return kept
        new = series.points_of(connection, one.id, since=num_kept)
        points = new if kept is None else kept.followed_by(new)
        self._keep(one.id, points)
        return points

    def _keep(self, series_id: int, points: Points) -> None:
        with self._lock:
            before = self._kept.pop(series_id, None)
            self._kept[series_id] = points
            self._num_points += len(points.steps) - (0 if before is None else len(before.steps))
            while self._num_points > self._max_points:
                _, dropped = self._kept.popitem(last=False)
                self._num_points -= len(dropped.steps)


def newest_copies(points: Points, ranks: Mapping[int, int]) -> Points:
    """Return one point a step, by step: the copy of the newest session, and of its copies the last.

    `ranks` gives the place of each session in the order in which they began. A session that it lacks began
    after it was made.
    """
    if not len(points.steps):
        return points
    sessions, which = np.unique(points.sessions, return_inverse=True)
    newest = len(ranks)
    rank = np.array([ranks.get(int(one), newest) for one in sessions])[which]
    order = np.lexsort((np.arange(len(rank)), rank, points.steps))
    steps = points.steps[order]
    last_of_step = np.append(steps[1:] != steps[:-1], [True])
    return points.take(order[last_of_step])


def own_copies(points: Points, numbers: Mapping[int, int]) -> Iterator[tuple[int, Points]]:
    """Yield the number and the curve of each attempt that wrote points; `numbers` gives that of each session.

    What a killed attempt wrote and the next one wrote again is in both their curves.
    """
    latest = max(numbers.values(), default=0)
    sessions, which = np.unique(points.sessions, return_inverse=True)
    number = np.array([numbers.get(int(one), latest) for one in sessions], dtype=np.int64)[which]
    for one in np.unique(number):
        yield int(one), newest_copies(points.take(number == one), {})


def buckets(curve: Points, width: int) -> dict[str, Any]:
    """Return a curve of at most `width` buckets along the step: the last step of each, its min, max and last.

    A curve of no more points than that comes as it is.
    """
    if len(curve.steps) <= width:
        return {"step": curve.steps, "min": curve.values, "max": curve.values, "last": curve.values}
    first, span = curve.steps[0], float(curve.steps[-1] - curve.steps[0]) + 1
    bucket = np.floor((curve.steps - first) / span * width).astype(np.int64)
    begins = np.flatnonzero(np.append([True], bucket[1:] != bucket[:-1]))
    ends = np.append(begins[1:], len(bucket)) - 1
    return {
        "step": curve.steps[ends],
        "min": np.minimum.reduceat(curve.values, begins),
        "max": np.maximum.reduceat(curve.values, begins),
        "last": curve.values[ends],
    }
