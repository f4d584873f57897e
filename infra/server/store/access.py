"""Organisations and the keys that act for them. A secret is shown once; what is kept is its hash."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from infra.server.store.database import new_id
from infra.server.store.schema import keys, organisations

__all__ = ["Organisation", "create_key", "create_organisation", "find_key", "hash_secret", "new_secret"]


@dataclass(frozen=True, slots=True)
class Organisation:
    """Whose everything is."""

    id: int
    uid: str
    name: str


def new_secret(prefix: str) -> str:
    """Return 256 random bits as text; the prefix says what they open."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def hash_secret(secret: str) -> bytes:
    """Return what is stored of a secret. 256 random bits need no salt and no slow hash.

    Looking the hash up in an index tells a guesser nothing: nobody can choose a secret with a given hash.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def create_organisation(connection: Connection, name: str, *, now_ms: int) -> Organisation:
    """Store a new organisation."""
    uid = str(uuid.uuid4())
    row = connection.execute(insert(organisations).values(uid=uid, name=name, created_ms=now_ms))
    return Organisation(new_id(row), uid, name)


def create_key(connection: Connection, organisation: Organisation, name: str, *, now_ms: int) -> str:
    """Store a new key and return its secret, which cannot be read again."""
    secret = new_secret("slk")
    connection.execute(
        insert(keys).values(
            uid=str(uuid.uuid4()),
            organisation_id=organisation.id,
            name=name,
            hash=hash_secret(secret),
            created_ms=now_ms,
        )
    )
    return secret


def first_organisation(connection: Connection) -> Organisation | None:
    """Return the organisation that the first start made; None before."""
    row = connection.execute(select(organisations).order_by(organisations.c.id).limit(1)).first()
    return Organisation(row.id, row.uid, row.name) if row else None


def find_key(connection: Connection, secret: str) -> Organisation | None:
    """Return the organisation that a key acts for; None when it is unknown or revoked."""
    row = connection.execute(
        select(organisations.c.id, organisations.c.uid, organisations.c.name)
        .join(keys, keys.c.organisation_id == organisations.c.id)
        .where(keys.c.hash == hash_secret(secret), keys.c.revoked_ms.is_(None))
    ).first()
    return Organisation(row.id, row.uid, row.name) if row else None
