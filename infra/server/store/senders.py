"""Our own senders' sessions within one experiment: found, begun, and which of their events were applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, insert, select, update

from infra.server.store import sql
from infra.server.store.database import new_id
from infra.server.store.marks import Marks
from infra.server.store.schema import message_holes, sessions

if TYPE_CHECKING:
    from infra.server.store.sessions import Session

__all__ = ["Sender", "adopt", "find_or_carry", "save"]


@dataclass(slots=True)
class Sender:
    """One of our sender's sessions as the writer remembers it."""

    session_id: int
    opened_id: int
    carried: bool
    marks: Marks


def find_or_carry(connection: Connection, writing: Session, sender: str, *, now_ms: int) -> Sender:
    """Return a sender's session; one never seen here is carried by the session that writes now."""
    row = connection.execute(
        select(sessions.c.id, sessions.c.opened_id, sessions.c.carried, sessions.c.next_sequence).where(
            sessions.c.experiment_id == writing.experiment_id, sessions.c.sender == sender
        )
    ).first()
    if row is not None:
        holes = connection.execute(
            select(message_holes.c.first, message_holes.c.last)
            .where(message_holes.c.session_id == row.id)
            .order_by(message_holes.c.first)
        ).all()
        marks = Marks(row.next_sequence, [(first, last) for first, last in holes])
        return Sender(row.id, row.opened_id, carried=row.carried, marks=marks)
    created = connection.execute(
        insert(sessions).values(
            experiment_id=writing.experiment_id,
            sender=sender,
            opened_id=writing.id,
            carried=True,
            opened_ms=now_ms,
            next_sequence=0,
        )
    )
    return Sender(new_id(created), writing.id, carried=True, marks=Marks())


def adopt(connection: Connection, writing: Session, sender: Sender) -> None:
    """Take a carried session for the writer's own: only the writer itself starts under its token."""
    if sender.carried and sender.opened_id == writing.id:
        sender.carried = False
        connection.execute(update(sessions).where(sessions.c.id == sender.session_id).values(carried=False))


def save(connection: Connection, sender: Sender) -> None:
    """Store how far a sender's events were applied."""
    sql.run(
        connection,
        "UPDATE sessions SET next_sequence = ? WHERE id = ?",
        (sender.marks.next, sender.session_id),
    )
    deleted, stored = sender.marks.flushed()
    sql.many(
        connection,
        "DELETE FROM message_holes WHERE session_id = ? AND first = ?",
        [(sender.session_id, first) for first in deleted],
    )
    sql.many(
        connection,
        "INSERT INTO message_holes (session_id, first, last) VALUES (?, ?, ?)",
        [(sender.session_id, first, last) for first, last in stored],
    )
