"""Annotations: text and an object at a point in time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select

from infra.server.store.schema import annotations as table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["append", "of_experiment"]


def append(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Store annotations."""
    connection.execute(insert(table), rows)


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
