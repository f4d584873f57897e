"""Requests that a client may repeat: what was answered is kept with what was changed, in one commit.

So nothing has to be remembered of a request that a crash cut off: it changed nothing, and its repetition is
the first one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from infra.server.refusals import Refused
from infra.server.store.schema import idempotency_keys

__all__ = ["KEPT_MS", "MAX_KEY_LENGTH", "Repeatable", "find", "keep"]

MAX_KEY_LENGTH = 255
KEPT_MS = 2 * 24 * 3_600_000
"""How long an answer is kept: two days, at least one of them promised."""

_DROPPED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A request under a key of its client's choice, as it is remembered: by hashes."""

    organisation_id: int
    hash: bytes
    request_hash: bytes

    @classmethod
    def of(cls, organisation_id: int, key: str, *, method: str, path: str, body: bytes) -> Repeatable:
        """Return what is remembered of a request."""
        request = b"\0".join((method.encode(), path.encode("utf-8", "surrogateescape"), body))
        return cls(organisation_id, _hash(key.encode("utf-8", "surrogateescape")), _hash(request))


def find(connection: Connection, request: Repeatable) -> bytes | None:
    """Return what was answered to the request before; None when it is new.

    Raises:
        Refused: Another request came under its key.
    """
    row = connection.execute(
        select(idempotency_keys.c.request_hash, idempotency_keys.c.reply).where(
            idempotency_keys.c.organisation_id == request.organisation_id,
            idempotency_keys.c.hash == request.hash,
        )
    ).first()
    if row is None:
        return None
    if row.request_hash != request.request_hash:
        raise Refused(
            "idempotency_key_reused", "another request came under this idempotency-key: give each its own"
        )
    return bytes(row.reply)


def keep(connection: Connection, request: Repeatable, reply: bytes, *, now_ms: int) -> None:
    """Remember an answer, and drop some of those that are past their time."""
    old = (
        select(idempotency_keys.c.organisation_id, idempotency_keys.c.hash)
        .where(idempotency_keys.c.created_ms < now_ms - KEPT_MS)
        .limit(_DROPPED_AT_ONCE)
    )
    for organisation_id, key_hash in connection.execute(old).all():
        connection.execute(
            delete(idempotency_keys).where(
                idempotency_keys.c.organisation_id == organisation_id, idempotency_keys.c.hash == key_hash
            )
        )
    connection.execute(
        insert(idempotency_keys).values(
            organisation_id=request.organisation_id,
            hash=request.hash,
            request_hash=request.request_hash,
            reply=reply,
            created_ms=now_ms,
        )
    )


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
