"""What the migration does with points that stand in rows of their own: they move into blocks."""

from __future__ import annotations

from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from infra.server.store import blocks
from infra.server.store.points import points

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

    from infra.server.store.database import AnyRow

__all__ = ["move"]


def move(connection: Connection) -> None:
    """Copy every point of the table `points` into blocks, a chunk in memory at a time."""
    rows = connection.exec_driver_sql(
        "SELECT series_id, step, timestamp_ms, value, session_id FROM points ORDER BY series_id, arrival",
        execution_options={"yield_per": 10_000},
    )
    for series_id, of_series in groupby(rows, key=itemgetter(0)):
        first = 0
        while part := list(islice(of_series, blocks.CHUNK_POINTS)):
            _store(connection, series_id, first, part)
            first += len(part)


def _store(connection: Connection, series_id: int, first: int, part: Iterable[AnyRow]) -> None:
    _, steps, times, values, sessions = zip(*part, strict=True)
    blocks.add(connection, [(series_id, first, points(steps, times, values, sessions))])
    blocks.note_last(connection, [(first + len(steps), steps[-1], times[-1], values[-1], series_id)])
