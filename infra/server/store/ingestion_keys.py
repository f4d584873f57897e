"""Ingestion keys: tokens with a name that the REST API hands out for writing to one experiment."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Select, insert, or_, select, update

from infra.server.refusals import Refused
from infra.server.store import sessions
from infra.server.store.schema import ingestion_keys, tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.server.store.database import AnyRow

__all__ = ["MAX_LIFETIME_MS", "create", "find", "of_experiment", "revoke", "used"]

MAX_LIFETIME_MS = 7 * 24 * 3_600_000
_USE_NOTED_EVERY_MS = 60_000


def create(
    connection: Connection, experiment_id: int, name: str, *, lifetime_ms: int, now_ms: int
) -> tuple[AnyRow, str]:
    """Store a new key with a session of its own; return it and its secret, which cannot be read again."""
    session_id = sessions.begin(connection, experiment_id, now_ms=now_ms)
    token = sessions.issue(connection, session_id, now_ms=now_ms, lifetime_ms=lifetime_ms)
    uid = str(uuid.uuid4())
    connection.execute(
        insert(ingestion_keys).values(
            uid=uid, experiment_id=experiment_id, session_id=session_id, token_id=token.id, name=name
        )
    )
    return find(connection, experiment_id, uid), token.secret


def find(connection: Connection, experiment_id: int, uid: str) -> AnyRow:
    """Return a key.

    Raises:
        Refused: The experiment has none of this id.
    """
    row = connection.execute(_keys(experiment_id).where(ingestion_keys.c.uid == uid)).first()
    if row is None:
        raise Refused(
            "ingestion_key_not_found", f"the experiment has no ingestion key {json.dumps(uid[:64])}"
        )
    return row


def of_experiment(connection: Connection, experiment_id: int) -> Sequence[AnyRow]:
    """Return an experiment's keys, also those that are no longer good, the newest first."""
    return connection.execute(_keys(experiment_id).order_by(ingestion_keys.c.id.desc())).all()


def revoke(connection: Connection, experiment_id: int, uid: str, *, now_ms: int) -> AnyRow:
    """End a key; one that was revoked before keeps the time at which it was.

    Raises:
        Refused: The experiment has none of this id.
    """
    key = find(connection, experiment_id, uid)
    sessions.revoke(connection, key.session_id, now_ms=now_ms)
    return find(connection, experiment_id, uid)


def used(connection: Connection, session_id: int, *, now_ms: int) -> None:
    """Note that the key of a session was used, to the minute. Sessions without a key are passed over."""
    last = ingestion_keys.c.last_used_ms
    connection.execute(
        update(ingestion_keys)
        .where(
            ingestion_keys.c.session_id == session_id,
            or_(last.is_(None), last <= now_ms - _USE_NOTED_EVERY_MS),
        )
        .values(last_used_ms=now_ms)
    )


def _keys(experiment_id: int) -> Select[*tuple[object, ...]]:
    return (
        select(
            ingestion_keys.c.uid,
            ingestion_keys.c.session_id,
            ingestion_keys.c.name,
            ingestion_keys.c.last_used_ms,
            tokens.c.created_ms,
            tokens.c.expires_ms,
            tokens.c.revoked_ms,
        )
        .join(tokens, tokens.c.id == ingestion_keys.c.token_id)
        .where(ingestion_keys.c.experiment_id == experiment_id)
    )
