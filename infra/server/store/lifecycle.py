"""An experiment's status: what a start, a done or an error does to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, select, update

from infra.server.store import sessions
from infra.server.store.schema import experiments, lifecycle

if TYPE_CHECKING:
    from infra.server.store.commands import Change
    from infra.server.store.database import AnyRow

__all__ = ["QUIET_AFTER_MS", "apply", "last_sign_ms", "num_started", "quiet_ms", "speaker"]

QUIET_AFTER_MS = 120_000
"""A running experiment that gave no sign for so long is shown as quiet; its status stays what it said."""


def apply(
    connection: Connection, experiment_id: int, session_id: int, change: Change, *, now_ms: int
) -> None:
    """Store what was told; change the status unless it is an end told by a replaced session.

    The record changes in any case: it shows when something was last heard.
    """
    at_ms = now_ms if change.at_ms is None else change.at_ms
    _keep(connection, experiment_id, session_id, change, at_ms)
    row = connection.execute(
        select(experiments.c.status, experiments.c.started_ms, experiments.c.started_session_id).where(
            experiments.c.id == experiment_id
        )
    ).one()
    holder = row.started_session_id
    replaced = holder is not None and sessions.is_older(connection, session_id, holder)
    values: dict[str, Any] = {}
    if change.kind == "start":
        values = _started(row, session_id, at_ms, replaced=replaced)
    elif not replaced:
        values = _ended(change, at_ms)
    connection.execute(
        update(experiments)
        .where(experiments.c.id == experiment_id)
        .values(updated_ms=now_ms, experiment_revision=experiments.c.experiment_revision + 1, **values)
    )


def speaker(connection: Connection, row: AnyRow, *, start: bool, now_ms: int) -> int:
    """Return the session in whose name somebody with a key tells a status: such a word always counts.

    A start is the newest session's, so that the run is held by whoever opened it last. An end is the end of
    whoever holds the run.
    """
    if not start and row.started_session_id is not None:
        return int(row.started_session_id)
    return sessions.newest(connection, row.id, now_ms=now_ms)


def last_sign_ms(row: AnyRow) -> int:
    """Return when an experiment was last heard of, given its row."""
    return int(max(row.created_ms, row.last_heartbeat_ms or 0, row.last_event_ms or 0))


def quiet_ms(row: AnyRow, now_ms: int) -> int | None:
    """Return for how long a running experiment gave no sign, if that is long; None otherwise."""
    silence_ms = now_ms - last_sign_ms(row)
    return silence_ms if row.status == "running" and silence_ms >= QUIET_AFTER_MS else None


def num_started(connection: Connection, experiment_id: int) -> int:
    """Return how many sessions started the experiment."""
    return connection.execute(
        select(func.count(lifecycle.c.session_id.distinct())).where(
            lifecycle.c.experiment_id == experiment_id, lifecycle.c.kind == "start"
        )
    ).scalar_one()


def _keep(connection: Connection, experiment_id: int, session_id: int, change: Change, at_ms: int) -> None:
    connection.execute(
        insert(lifecycle).values(
            experiment_id=experiment_id,
            session_id=session_id,
            kind=change.kind,
            error_message=change.error_message,
            error_meta=change.error_meta,
            at_ms=at_ms,
        )
    )


def _started(row: AnyRow, session_id: int, at_ms: int, *, replaced: bool) -> dict[str, Any]:
    """An older session that starts while the newer one runs does not take the run from it."""
    keeps = replaced and row.status == "running"
    return {
        "status": "running",
        "started_ms": at_ms if row.started_ms is None else row.started_ms,
        "started_session_id": row.started_session_id if keeps else session_id,
        "done_ms": None,
        "error_message": None,
        "error_meta": None,
    }


def _ended(change: Change, at_ms: int) -> dict[str, Any]:
    return {
        "status": change.kind,
        "done_ms": at_ms,
        "error_message": change.error_message,
        "error_meta": change.error_meta,
    }
