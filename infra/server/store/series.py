"""Series: the points of one metric name under one exact metadata map, and how they are found and read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from infra.server.store import blocks, sql
from infra.server.store.points import NO_STEP, Axis, Points
from infra.server.store.schema import series
from infra.server.store.streams import FRAME_POINTS, Order, stream, stream_each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from infra.server.limits import Partition

__all__ = [
    "FRAME_POINTS",
    "MAX_PARTITIONS",
    "NO_STEP",
    "Axis",
    "Order",
    "Points",
    "Series",
    "catalog",
    "create",
    "find",
    "last_points",
    "num_partitions",
    "of_experiment",
    "points_of",
    "stream",
    "stream_each",
]

MAX_PARTITIONS = 4096


@dataclass(frozen=True, slots=True)
class Series:
    """One series. `num_points` counts every copy of every step."""

    id: int
    name: str
    metadata: dict[str, str]
    num_points: int


def find(connection: Connection, experiment_id: int, partition: Partition) -> tuple[int, int] | None:
    """Return the id of a series and how many points it has; None where it does not exist yet."""
    row = sql.one(
        connection,
        "SELECT id, num_points FROM series WHERE experiment_id = ? AND name = ? AND metadata_hash = ?",
        (experiment_id, partition.name, partition.hash),
    )
    return None if row is None else (row[0], row[1])


def create(connection: Connection, experiment_id: int, partition: Partition) -> int:
    """Make a series and return its id."""
    created = sql.scalar(
        connection,
        "INSERT INTO series (experiment_id, name, metadata, metadata_hash, num_points)"
        " VALUES (?, ?, ?, ?, 0) RETURNING id",
        (experiment_id, partition.name, partition.metadata, partition.hash),
    )
    return int(created)


def num_partitions(connection: Connection, experiment_id: int, name: str) -> int:
    """Return how many series a metric has."""
    count = "SELECT count(*) FROM series WHERE experiment_id = ? AND name = ?"
    return int(sql.scalar(connection, count, (experiment_id, name)))


def of_experiment(
    connection: Connection, experiment_id: int, names: Sequence[str] | None = None
) -> Iterator[Series]:
    """Yield an experiment's series by name, then in order of first arrival. `names` unset means all."""
    wanted = [series.c.experiment_id == experiment_id]
    if names is not None:
        wanted.append(series.c.name.in_(names))
    rows = connection.execute(
        select(series.c.id, series.c.name, series.c.metadata, series.c.num_points)
        .where(*wanted)
        .order_by(series.c.name, series.c.id)
    )
    for row in rows:
        yield Series(row.id, row.name, json.loads(row.metadata), row.num_points)


def points_of(connection: Connection, one: Series) -> Points:
    """Read all points of a series in order of arrival; `stream` holds a part of them at a time."""
    return blocks.read(connection, one.id, 0, one.num_points)


def last_points(connection: Connection, experiment_id: int, *, limit: int) -> list[dict[str, Any]]:
    """Return the point that arrived last in each of the first `limit` series, for people to look at.

    The step is None where it has none.
    """
    rows = connection.execute(
        select(
            series.c.name,
            series.c.metadata,
            series.c.num_points,
            series.c.last_step,
            series.c.last_timestamp_ms,
            series.c.last_value,
        )
        .where(series.c.experiment_id == experiment_id, series.c.num_points > 0)
        .order_by(series.c.name, series.c.id)
        .limit(limit)
    )
    return [
        {
            "name": row.name,
            "metadata": json.loads(row.metadata),
            "num_points": row.num_points,
            "step": None if row.last_step == NO_STEP else row.last_step,
            "timestamp_ms": row.last_timestamp_ms,
            "value": row.last_value,
        }
        for row in rows
    ]


def catalog(connection: Connection, experiment_id: int) -> list[dict[str, Any]]:
    """Return each metric name with the metadata keys it has and the values of each, sorted."""
    names: dict[str, dict[str, set[str]]] = {}
    for one in of_experiment(connection, experiment_id):
        keys = names.setdefault(one.name, {})
        for key, value in one.metadata.items():
            keys.setdefault(key, set()).add(value)
    return [
        {
            "seriesName": name,
            "metadata": [{"key": key, "values": sorted(values)} for key, values in sorted(keys.items())],
        }
        for name, keys in names.items()
    ]
