"""Annotations: text and an object at a point in time."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Connection, insert, select, update

from infra.server.store.database import AnyRow, new_id
from infra.server.store.schema import annotations as table
from infra.server.store.schema import experiments

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["add", "append", "between", "encoded", "of_experiment"]

_PAGE = 500


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


def of_experiment(connection: Connection, experiment_id: int, *, limit: int) -> list[dict[str, Any]]:
    """Return an experiment's newest annotations as the wire shows them, the newest first."""
    return [
        {
            "annotationId": row.uid,
            "annotation": row.text,
            "meta": json.loads(row.meta),
            "createdAtMs": row.at_ms,
        }
        for row in _page(connection, experiment_id, None, limit)
    ]


def encoded(connection: Connection, experiment_id: int, *, max_bytes: int) -> bytes | None:
    """Return all annotations of an experiment as one JSON array, newest first; None where it is too large.

    They are read a page at a time, so that no more than the array and a page is held.
    """
    parts: list[bytes] = []
    size, last = 0, None
    while rows := _page(connection, experiment_id, last, _PAGE):
        for row in rows:
            part = orjson.dumps(
                {
                    "annotationId": row.uid,
                    "annotation": row.text,
                    "meta": orjson.Fragment(row.meta),
                    "createdAtMs": row.at_ms,
                }
            )
            parts.append(part)
            size += len(part) + 1
            if size > max_bytes:
                return None
        last = rows[-1]
    return b"[%b]" % b",".join(parts)


def _page(connection: Connection, experiment_id: int, after: AnyRow | None, limit: int) -> Sequence[AnyRow]:
    """Return the annotations that come after one of them, the newest first; unset, from the first on."""
    found = select(table.c.id, table.c.uid, table.c.text, table.c.meta, table.c.at_ms).where(
        table.c.experiment_id == experiment_id
    )
    if after is not None:
        older = (table.c.at_ms == after.at_ms) & (table.c.id < after.id)
        found = found.where((table.c.at_ms <= after.at_ms) & ((table.c.at_ms < after.at_ms) | older))
    return connection.execute(found.order_by(table.c.at_ms.desc(), table.c.id.desc()).limit(limit)).all()
