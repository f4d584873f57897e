"""Blocks: the points of one series that arrived one after another, as one row.

A batch adds one small block to each series it has points of. Sixteen small blocks of about one size become
one larger one, and when those that are not full have 65,536 points together they become a chunk, which is
never touched again and carries its summary. So a point is written about four times in all, a series of a
million points is sixteen rows, and what it costs to read one does not depend on what else there is. All of it
happens in the transaction that adds the block: after a crash a fold was made or was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from infra.server.store import codec, sql, summaries
from infra.server.store.points import Points, join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from infra.server.store.points import Axis

__all__ = [
    "CHUNK_POINTS",
    "FAN_OUT",
    "Block",
    "Extent",
    "add",
    "fold",
    "layout",
    "note_last",
    "read",
    "summaries_of",
    "tail",
]

CHUNK_POINTS = 65_536
"""A chunk has at least as many, and less than one batch more."""
FAN_OUT = 16

_INSERT = (
    "INSERT INTO point_blocks (series_id, first, count, min_step, max_step, min_ms, max_ms, summary, data)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Extent(NamedTuple):
    """Which arrivals a block holds: from `first` to before `end`, counted from 0 in a series."""

    first: int
    end: int

    @property
    def num_points(self) -> int:
        """How many."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Block:
    """One row without its points. Steps are -1 where a point has none."""

    first: int
    count: int
    min_step: int
    max_step: int
    min_ms: int
    max_ms: int
    has_summary: bool

    @property
    def end(self) -> int:
        """One past its last arrival."""
        return self.first + self.count

    def span(self, axis: Axis) -> tuple[int, int]:
        """Return the least and the greatest place of its points along an axis."""
        return (self.min_step, self.max_step) if axis == "step" else (self.min_ms, self.max_ms)


class Grown(NamedTuple):
    """What a batch adds to one series: points between two places of its columns, from the `first`-th on."""

    series_id: int
    first: int
    begin: int
    end: int


def add(connection: Connection, fresh: Sequence[tuple[int, int, Points]]) -> None:
    """Store new blocks: for each its series, its first arrival, its points."""
    for series_id, first, points in fresh:
        add_parts(connection, points, [Grown(series_id, first, 0, len(points))])


def add_parts(connection: Connection, points: Points, parts: Sequence[Grown]) -> None:
    """Store a block for each part of the points.

    The parts follow one another, each at least one point. What can be is done per batch: it may have a
    thousand series.
    """
    begins = [part.begin for part in parts]
    limits = [
        limit.reduceat(column, begins).tolist()
        for column in (points.steps, points.timestamps_ms)
        for limit in (np.minimum, np.maximum)
    ]
    rows = codec.rows_of(points)
    blocks = []
    for part, *spans in zip(parts, *limits, strict=True):
        series_id, first, begin, end = part
        count, summary = end - begin, None
        if count < codec.WORTH_PACKING:
            data = codec.plain(rows[begin:end])
        else:
            packed = points.take(slice(begin, end))
            data = codec.encode(packed)
            if count >= CHUNK_POINTS:
                summary = summaries.encode(summaries.summarise(packed))
        blocks.append((series_id, first, count, *spans, summary, data))
    sql.many(connection, _INSERT, blocks)


def note_last(connection: Connection, grown: Sequence[tuple[Any, ...]]) -> None:
    """Store of each series how many points it has, the last one (step, time, value); then comes its id."""
    sql.many(
        connection,
        "UPDATE series SET num_points = ?, last_step = ?, last_timestamp_ms = ?, last_value = ? WHERE id = ?",
        grown,
    )


def tail(connection: Connection, series_id: int) -> list[Extent]:
    """Return the blocks of a series that are no chunks yet, in order of arrival."""
    rows = sql.run(
        connection,
        "SELECT first, count FROM point_blocks WHERE series_id = ? AND count < ? ORDER BY first",
        (series_id, CHUNK_POINTS),
    )
    return [Extent(row[0], row[0] + row[1]) for row in rows]


def fold(connection: Connection, series_id: int, extents: list[Extent], *, whole: bool = False) -> bool:
    """Make one of the last blocks of a tail where it is time; `extents` is kept true. Return whether it was.

    `whole` makes one of all of them: nothing more is expected.
    """
    num_folded = len(extents) if whole else _due(extents)
    if num_folded < 2:
        return False
    first, end = extents[-num_folded].first, extents[-1].end
    points = read(connection, series_id, first, end)
    sql.run(
        connection,
        "DELETE FROM point_blocks WHERE series_id = ? AND first >= ? AND first < ?",
        (series_id, first, end),
    )
    add(connection, [(series_id, first, points)])
    del extents[-num_folded:]
    if len(points) < CHUNK_POINTS:
        extents.append(Extent(first, end))
    return True


def read(connection: Connection, series_id: int, first: int, end: int) -> Points:
    """Read the points that arrived from `first` to before `end`, whatever blocks hold them by now."""
    rows = sql.run(
        connection,
        "SELECT first, data FROM point_blocks WHERE series_id = ? AND first < ? AND first >= coalesce("
        "(SELECT max(first) FROM point_blocks WHERE series_id = ? AND first <= ?), 0) ORDER BY first",
        (series_id, end, series_id, first),
    )
    found = rows.all()
    if not found:
        return join(())
    points = codec.decode_all(row[1] for row in found)
    begins = found[0][0]
    if begins < first or begins + len(points) > end:
        points = points.take(slice(max(first - begins, 0), end - begins))
    return points


def layout(connection: Connection, series_id: int) -> list[Block]:
    """Return the blocks of a series in order of arrival."""
    rows = sql.run(
        connection,
        "SELECT first, count, min_step, max_step, min_ms, max_ms, summary IS NOT NULL FROM point_blocks"
        " WHERE series_id = ? ORDER BY first",
        (series_id,),
    )
    return [Block(row[0], row[1], row[2], row[3], row[4], row[5], bool(row[6])) for row in rows]


def summaries_of(
    connection: Connection, series_id: int, *, first_step: int, last_step: int
) -> list[tuple[int, int, summaries.Groups]]:
    """Return the first arrival, the number of points and the summary of each chunk with steps in a window."""
    rows = sql.run(
        connection,
        "SELECT first, count, summary FROM point_blocks WHERE series_id = ? AND summary IS NOT NULL"
        " AND max_step >= ? AND min_step <= ? ORDER BY first",
        (series_id, first_step, last_step),
    )
    return [(row[0], row[1], summaries.decode(row[2])) for row in rows]


def _due(extents: list[Extent]) -> int:
    """Return how many of the last blocks are to become one: all of a chunk's worth, or 16 of one size."""
    if extents[-1].end - extents[0].first >= CHUNK_POINTS:
        return len(extents)
    num_last, size = 0, FAN_OUT
    while size <= CHUNK_POINTS:
        num_smaller = num_last
        while num_last < len(extents) and extents[-1 - num_last].num_points < size:
            num_last += 1
        # Those of this size alone count: with smaller ones counted in, a large one would be written again
        # each time that a few small ones had come.
        if num_last - num_smaller >= FAN_OUT:
            return num_last
        size *= FAN_OUT
    return 0
