"""Message ids of clients that draw them at random: which of them were applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from infra.server.store import sql
from infra.server.store.schema import applied_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["known", "remember"]


def known(connection: Connection, experiment_id: int, message_ids: Sequence[str]) -> set[str]:
    """Return which of the ids were applied to the experiment before."""
    of_experiment = applied_ids.c.experiment_id == experiment_id
    rows = connection.execute(
        select(applied_ids.c.message_id).where(of_experiment, applied_ids.c.message_id.in_(message_ids))
    )
    return set(rows.scalars())


def remember(connection: Connection, experiment_id: int, message_ids: Sequence[str], *, now_ms: int) -> None:
    """Remember ids that are applied in this transaction; none of them is known."""
    sql.many(
        connection,
        "INSERT INTO applied_ids (experiment_id, message_id, applied_ms) VALUES (?, ?, ?)",
        [(experiment_id, message_id, now_ms) for message_id in message_ids],
    )
