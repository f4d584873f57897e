"""Deleting experiments: gone for everybody at once, their rows piece by piece, so that no commit grows long.

What is left is found again after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, select, update

from infra.server.store import sql
from infra.server.store.schema import annotations as annotation_table
from infra.server.store.schema import (
    applied_keys,
    experiments,
    ingestion_keys,
    lifecycle,
    message_holes,
    point_blocks,
    run_files,
    run_log_blocks,
    run_logs,
    runs,
    series,
    sessions,
    telemetry_blocks,
    telemetry_states,
    tokens,
)

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select, Table

__all__ = ["begin", "step"]

_ROWS = 2_000
_SERIES = 512
_BLOCKS = 64
"""How many rows one piece deletes. A block may hold half a MiB."""


def begin(connection: Connection, experiment_id: int, *, now_ms: int) -> None:
    """Take an experiment away: its slug is free, its tokens are no good, it is in no folder."""
    mine = select(sessions.c.id).where(sessions.c.experiment_id == experiment_id)
    connection.execute(delete(ingestion_keys).where(ingestion_keys.c.experiment_id == experiment_id))
    connection.execute(delete(tokens).where(tokens.c.session_id.in_(mine)))
    uid = connection.execute(select(experiments.c.uid).where(experiments.c.id == experiment_id)).scalar_one()
    connection.execute(
        update(experiments)
        .where(experiments.c.id == experiment_id)
        .values(deleted_ms=now_ms, folder_id=None, slug=_no_slug(uid))
    )


def step(connection: Connection) -> bool:
    """Delete one piece of what was taken away. Returns whether there was any."""
    experiment_id = connection.execute(
        select(experiments.c.id).where(experiments.c.deleted_ms.is_not(None)).limit(1)
    ).scalar()
    if experiment_id is None:
        return False
    pieces = (_points, _run, _rest)
    if not any(piece(connection, experiment_id) for piece in pieces):
        connection.execute(delete(experiments).where(experiments.c.id == experiment_id))
    return True


def _no_slug(uid: str) -> str:
    """Return what no slug can be: it is too long."""
    return f"deleted {uid} ".ljust(256, ".")


def _points(connection: Connection, experiment_id: int) -> bool:
    """Delete some points of some series, and those series once they have none."""
    found = connection.execute(
        select(series.c.id)
        .where(series.c.experiment_id == experiment_id)
        .order_by(series.c.id)
        .limit(_SERIES)
    )
    some = found.scalars().all()
    if not some:
        return False
    theirs = select(point_blocks.c.id).where(point_blocks.c.series_id.in_(some)).limit(_BLOCKS)
    if not _deleted(connection, point_blocks, theirs):
        connection.execute(delete(series).where(series.c.id.in_(some)))
    return True


def _run(connection: Connection, experiment_id: int) -> bool:
    """Delete some blocks of the experiment's run, and the run itself once it has none."""
    run_id = connection.execute(select(runs.c.id).where(runs.c.experiment_id == experiment_id)).scalar()
    if run_id is None:
        return False
    logs = select(run_logs.c.id).where(run_logs.c.run_id == run_id)
    for table, mine in (
        (telemetry_blocks, telemetry_blocks.c.run_id == run_id),
        (run_log_blocks, run_log_blocks.c.log_id.in_(logs)),
    ):
        if _deleted(connection, table, select(table.c.id).where(mine).limit(_BLOCKS)):
            return True
    for table in (run_logs, run_files, telemetry_states):
        connection.execute(delete(table).where(table.c.run_id == run_id))
    connection.execute(delete(runs).where(runs.c.id == run_id))
    return True


def _rest(connection: Connection, experiment_id: int) -> bool:
    """Delete some of one table's rows, each table before those that it refers to."""
    mine = sessions.c.experiment_id == experiment_id
    for table in (annotation_table, lifecycle):
        if _deleted(connection, table, _some(table, table.c.experiment_id == experiment_id)):
            return True
    ids = select(applied_keys.c.id).where(applied_keys.c.experiment_id == experiment_id).limit(_BLOCKS)
    if _deleted(connection, applied_keys, ids):
        return True
    holes = connection.execute(
        select(message_holes.c.session_id, message_holes.c.first)
        .join(sessions, sessions.c.id == message_holes.c.session_id)
        .where(mine)
        .limit(_ROWS)
    ).all()
    if holes:
        statement = "DELETE FROM message_holes WHERE session_id = ? AND first = ?"
        sql.many(connection, statement, [tuple(hole) for hole in holes])
        return True
    carried = sessions.c.opened_id.is_not(None)
    return any(_deleted(connection, sessions, _some(sessions, mine, *more)) for more in ((carried,), ()))


def _some(table: Table, *which: ColumnElement[bool]) -> Select[*tuple[int]]:
    return select(table.c.id).where(*which).limit(_ROWS)


def _deleted(connection: Connection, table: Table, some: Select[*tuple[int]]) -> bool:
    return connection.execute(delete(table).where(table.c.id.in_(some))).rowcount > 0
