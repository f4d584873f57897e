"""Summaries of a chunk: the least, the greatest and the last value of every 128 points, for charts.

A chart of ten million points over a thousand pixels reads these, and unpacks only the points where one
attempt's steps meet another's: there the newest copy has to be found point by point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from infra.server.store.codec import pack_table, unpack_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from infra.server.store.points import Points

__all__ = ["GROUP_POINTS", "MIXED", "Groups", "decode", "encode", "join", "summarise"]

GROUP_POINTS = 128
MIXED = -1
"""Stands for the session of a group that several wrote."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Consecutive points of a chunk in groups, as columns of equal length; the last group may be smaller.

    `climbs` is 1 where every step is there and above the one before it, so that `low` is the group's first
    step, `high` its last, and `last` the value there.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    sessions: NDArray[np.int64]
    climbs: NDArray[np.int64]
    least: NDArray[np.float64]
    greatest: NDArray[np.float64]
    last: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.low)

    def take(self, index: NDArray[Any]) -> Groups:
        """Return the groups that an index or a mask selects."""
        return Groups(*[getattr(self, name)[index] for name in _NAMES])


_NAMES = tuple(Groups.__dataclass_fields__)


def summarise(points: Points) -> Groups:
    """Return the groups of at least one point."""
    begins = np.arange(0, len(points), GROUP_POINTS)
    ends = np.append(begins[1:], len(points)) - 1
    low = np.minimum.reduceat(points.steps, begins)
    first_session = points.sessions[begins]
    alone = _all_within(points.sessions[1:] == points.sessions[:-1], begins)
    climbs = _all_within(points.steps[1:] > points.steps[:-1], begins) & (low >= 0)
    return Groups(
        low=low,
        high=np.maximum.reduceat(points.steps, begins),
        sessions=np.where(alone, first_session, MIXED),
        climbs=climbs.astype(np.int64),
        least=np.minimum.reduceat(points.values, begins),
        greatest=np.maximum.reduceat(points.values, begins),
        last=points.values[ends],
    )


def encode(groups: Groups) -> bytes:
    """Return at least one group as bytes."""
    integers = np.stack((groups.low, groups.high, groups.sessions, groups.climbs))
    doubles = np.stack((groups.least, groups.greatest, groups.last))
    return pack_table(np.concatenate((np.diff(integers, prepend=0), doubles.view(np.int64))))


def decode(data: bytes) -> Groups:
    """Return the groups of a chunk."""
    table = unpack_table(data, 7)
    low, high, sessions, climbs = np.cumsum(table[:4], axis=1)
    least, greatest, last = table[4:].view(np.float64)
    return Groups(low, high, sessions, climbs, least, greatest, last)


def join(parts: list[Groups]) -> Groups:
    """Return the groups of several chunks one after another; at least one chunk."""
    return Groups(*[np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES])


def _all_within(holds: NDArray[np.bool_], begins: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each group whether something holds between all neighbours within it."""
    within = np.append([True], holds)  # of each point: whether it holds between it and the one before
    within[begins] = True
    return np.logical_and.reduceat(within, begins)
