"""Annotations: text and an object at a point in time."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select, update

from infra.server.store.database import AnyRow, new_id
from infra.server.store.schema import annotations as table
from infra.server.store.schema import experiments

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["add", "append", "between", "of_experiment"]


def append(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Store annotations."""
    connection.execute(insert(table), rows)


def add(
    connection: Connection,
    experiment_id: int,
    session_id: int,
    *,
    text: str,
    meta: str,
    at_ms: int,
    now_ms: int,
) -> AnyRow:
    """Store one annotation and return it."""
    row = {
        "uid": str(uuid.uuid4()),
        "experiment_id": experiment_id,
        "session_id": session_id,
        "text": text,
        "meta": meta,
        "at_ms": at_ms,
    }
    made = new_id(connection.execute(insert(table).values(row)))
    connection.execute(
        update(experiments)
        .where(experiments.c.id == experiment_id)
        .values(updated_ms=now_ms, experiment_revision=experiments.c.experiment_revision + 1)
    )
    return connection.execute(select(table).where(table.c.id == made)).one()


def between(
    connection: Connection, experiment_id: int, *, first_ms: int, last_ms: int, limit: int
) -> Sequence[AnyRow]:
    """Return an experiment's annotations of a span of time, its ends included, the newest first."""
    return connection.execute(
        select(table)
        .where(table.c.experiment_id == experiment_id, table.c.at_ms.between(first_ms, last_ms))
        .order_by(table.c.at_ms.desc(), table.c.id.desc())
        .limit(limit)
    ).all()


def of_experiment(
    connection: Connection, experiment_id: int, *, limit: int | None = None
) -> list[dict[str, Any]]:
    """Return an experiment's annotations as the wire shows them, newest first; unset, `limit` means all."""
    rows = connection.execute(
        select(table.c.uid, table.c.text, table.c.meta, table.c.at_ms)
        .where(table.c.experiment_id == experiment_id)
        .order_by(table.c.at_ms.desc(), table.c.id.desc())
        .limit(limit)
    )
    return [
        {
            "annotationId": row.uid,
            "annotation": row.text,
            "meta": json.loads(row.meta),
            "createdAtMs": row.at_ms,
        }
        for row in rows
    ]
