"""Growth: the series of one experiment as the writer adds points to them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from infra.server.refusals import Refused
from infra.server.store import blocks, series
from infra.server.store.points import Points, points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from sqlalchemy import Connection

    from infra.server.limits import Partition
    from infra.server.store.blocks import Extent
    from infra.server.store.claims import Claim
    from infra.server.store.commands import Records

__all__ = ["Growth"]

_MAX_FOLDS = 64
"""In one batch. What is due beyond that is due the next time the series grows."""
_MAX_SETTLED = 256


@dataclass(slots=True)
class _Growing:
    """A series that grows. `extents` are its blocks that are no chunks yet."""

    id: int
    num_points: int
    extents: list[Extent]

    def may_fold(self) -> bool:
        """Whether there are enough blocks, or enough points in them."""
        if not self.extents:
            return False
        num_waiting = self.num_points - self.extents[0].first
        return len(self.extents) >= blocks.FAN_OUT or num_waiting >= blocks.CHUNK_POINTS


@dataclass(slots=True)
class Growth:
    """Remembers the series of an experiment, and gathers what a batch adds to them."""

    experiment_id: int
    _series: dict[tuple[str, bytes], _Growing] = field(default_factory=dict)
    _partitions: dict[str, int] = field(default_factory=dict)
    _opened: dict[int, _Growing] = field(default_factory=dict)
    _columns: Points = field(default_factory=lambda: points((), (), (), ()))
    _fresh: list[tuple[_Growing, int, int]] = field(default_factory=list)

    @property
    def num_series(self) -> int:
        """How many series are remembered."""
        return len(self._series)

    def open(
        self, connection: Connection, partitions: Sequence[Partition], wanted: Sequence[int]
    ) -> dict[int, Refused]:
        """Find or make the series of the partitions that are wanted; return refusals by place."""
        self._opened = {}
        refused = {}
        for place in wanted:
            partition = partitions[place]
            key = (partition.name, partition.hash)
            growing = self._series.get(key)
            if growing is None:
                growing = self._found_or_made(connection, partition)
                if growing is None:
                    refused[place] = _one_too_many(partition)
                    continue
                self._series[key] = growing
            self._opened[place] = growing
        return refused

    def _found_or_made(self, connection: Connection, partition: Partition) -> _Growing | None:
        found = series.find(connection, self.experiment_id, partition)
        if found is not None:
            return _Growing(*found, blocks.tail(connection, found[0]))
        count = self._partitions.get(partition.name)
        if count is None:
            count = series.num_partitions(connection, self.experiment_id, partition.name)
        self._partitions[partition.name] = count
        if count >= series.MAX_PARTITIONS:
            return None
        self._partitions[partition.name] = count + 1
        return _Growing(series.create(connection, self.experiment_id, partition), 0, [])

    def gather(self, records: Records, claimed: Claim, of_token: int, *, now_ms: int) -> int:
        """Take the points of a claim into their opened series; return the latest of their times."""
        times = records.timestamps_ms
        if None in times:
            times = [now_ms if at_ms is None else at_ms for at_ms in times]
        sessions = claimed.sessions(of_token)
        columns = Points(
            np.array(records.steps, dtype=np.int64),
            np.array(times, dtype=np.int64),
            np.array(records.values, dtype=np.float64),
            np.full(len(records), sessions, dtype=np.int64)
            if isinstance(sessions, int)
            else _spread(sessions, claimed.places, len(records)),
        )
        which = np.array(records.which, dtype=np.int64)
        if not claimed.all:
            places = np.array(claimed.places, dtype=np.int64)
            columns, which = columns.take(places), which[places]
        self._columns, which = _by_partition(columns, which)
        begins = np.flatnonzero(np.append([True], which[1:] != which[:-1])).tolist()
        self._fresh = [
            (self._opened[place], begin, end)
            for place, begin, end in zip(
                which[begins].tolist(), begins, [*begins[1:], len(which)], strict=True
            )
        ]
        return int(columns.timestamps_ms.max())

    def write(self, connection: Connection) -> None:
        """Write what was gathered: a block for each series, and folds where they are due."""
        ends = [end - 1 for _, _, end in self._fresh]
        last = self._columns.take(np.array(ends, dtype=np.int64))
        parts, grown = [], []
        for (growing, begin, end), *point in zip(
            self._fresh,
            last.steps.tolist(),
            last.timestamps_ms.tolist(),
            last.values.tolist(),
            strict=True,
        ):
            first, growing.num_points = growing.num_points, growing.num_points + end - begin
            growing.extents.append(blocks.Extent(first, growing.num_points))
            parts.append(blocks.Grown(growing.id, first, begin, end))
            grown.append((growing.num_points, *point, growing.id))
        blocks.add_parts(connection, self._columns, parts)
        blocks.note_last(connection, grown)
        num_folds = 0
        for growing, _, _ in self._fresh:
            if num_folds < _MAX_FOLDS and growing.may_fold():
                num_folds += blocks.fold(connection, growing.id, growing.extents)
        self._fresh = []

    def settle(self, connection: Connection) -> None:
        """Make one block of what is left of each series: the run says that it is over."""
        scattered = [growing for growing in self._series.values() if len(growing.extents) > 1]
        for growing in scattered[:_MAX_SETTLED]:
            blocks.fold(connection, growing.id, growing.extents, whole=True)


def _by_partition(columns: Points, which: NDArray[np.int64]) -> tuple[Points, NDArray[np.int64]]:
    """Return the points of each partition together, in order of arrival."""
    if (which == which[0]).all():
        return columns, which
    order = np.argsort(which, kind="stable")
    return columns.take(order), which[order]


def _spread(sessions: list[int], places: Sequence[int], count: int) -> NDArray[np.int64]:
    column = np.zeros(count, dtype=np.int64)
    column[np.array(places, dtype=np.int64)] = sessions
    return column


def _one_too_many(partition: Partition) -> Refused:
    return Refused(
        "series_limit_exceeded",
        f"metric {json.dumps(partition.name)} has {series.MAX_PARTITIONS} metadata maps, the most it takes",
    )
