"""Points of one series as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["NO_STEP", "Axis", "Points", "join", "newest_copies", "points"]

NO_STEP = -1
"""Stands for the step of a point that has none: v1 lets a client leave it out."""

Axis = Literal["step", "timestamp"]


@dataclass(frozen=True, slots=True)
class Points:
    """Points of one series as columns of equal length N, in order of arrival unless said otherwise."""

    steps: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    sessions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.steps)

    def key(self, axis: Axis) -> NDArray[np.int64]:
        """Return the column of an axis."""
        return self.steps if axis == "step" else self.timestamps_ms

    def take(self, index: NDArray[Any] | slice) -> Points:
        """Return the points that an index, a mask or a slice selects."""
        return Points(self.steps[index], self.timestamps_ms[index], self.values[index], self.sessions[index])


def points(
    steps: Sequence[int], timestamps_ms: Sequence[int], values: Sequence[float], sessions: Sequence[int]
) -> Points:
    """Return columns made of Python's numbers."""
    return Points(
        np.array(steps, dtype=np.int64),
        np.array(timestamps_ms, dtype=np.int64),
        np.array(values, dtype=np.float64),
        np.array(sessions, dtype=np.int64),
    )


def join(parts: Iterable[Points]) -> Points:
    """Return the points of several parts one after another; none of them is no points."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    if not found:
        return points((), (), (), ())
    return Points(
        np.concatenate([one.steps for one in found]),
        np.concatenate([one.timestamps_ms for one in found]),
        np.concatenate([one.values for one in found]),
        np.concatenate([one.sessions for one in found]),
    )


def newest_copies(of: Points, ranks: Mapping[int, int]) -> NDArray[np.int64]:
    """Return which points are the newest copy of their step, by step: the newest session's last one.

    `ranks` gives the place of each session in the order in which they began. A session that it lacks began
    after it was made. Points without a step are not copies of anything: all are kept, first and as they came.
    """
    ranked = _ranked(of.sessions, ranks)
    with_step = np.flatnonzero(of.steps != NO_STEP)
    steps = of.steps[with_step]
    if _increases(steps):
        order = with_step
    else:
        order = with_step[np.lexsort((ranked[with_step], steps))]
        in_order = of.steps[order]
        order = order[np.append(in_order[1:] != in_order[:-1], [True])]
    without = np.flatnonzero(of.steps == NO_STEP) if len(with_step) < len(of) else with_step[:0]
    return np.concatenate((without, order))


def _increases(column: NDArray[np.int64]) -> bool:
    return bool((column[1:] > column[:-1]).all())


def _ranked(sessions: NDArray[np.int64], ranks: Mapping[int, int]) -> NDArray[np.int64]:
    if len(sessions) and (sessions == sessions[0]).all():
        return np.zeros(len(sessions), dtype=np.int64)
    found, which = np.unique(sessions, return_inverse=True)
    newest = len(ranks)
    return np.array([ranks.get(int(one), newest) for one in found], dtype=np.int64)[which]
