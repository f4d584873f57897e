"""Organisations and the keys that act for them. A secret is shown once; what is kept is its hash."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy import Connection, insert, select

from infra.server.store.database import new_id
from infra.server.store.schema import keys, organisations

__all__ = [
    "ROLES",
    "Key",
    "Organisation",
    "Role",
    "create_key",
    "create_organisation",
    "find_key",
    "first_organisation",
    "hash_secret",
    "new_secret",
]

Role = Literal["viewer", "member", "owner"]
ROLES: tuple[Role, ...] = get_args(Role)
"""What people and keys may do, the least first."""


@dataclass(frozen=True, slots=True)
class Organisation:
    """Whose everything is."""

    id: int
    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Key:
    """A key that is good: whom it acts for and as what."""

    id: int
    organisation: Organisation
    role: Role


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


def create_key(
    connection: Connection, organisation: Organisation, name: str, *, role: Role, now_ms: int
) -> str:
    """Store a new key and return its secret, which cannot be read again."""
    secret = new_secret("slk")
    connection.execute(
        insert(keys).values(
            uid=str(uuid.uuid4()),
            organisation_id=organisation.id,
            name=name,
            hash=hash_secret(secret),
            role=role,
            created_ms=now_ms,
        )
    )
    return secret


def first_organisation(connection: Connection) -> Organisation | None:
    """Return the organisation that the first start made; None before."""
    row = connection.execute(select(organisations).order_by(organisations.c.id).limit(1)).first()
    return Organisation(row.id, row.uid, row.name) if row else None


def find_key(connection: Connection, secret: str) -> Key | None:
    """Return a key by its secret; None when it is unknown or revoked."""
    row = connection.execute(
        select(organisations.c.id, organisations.c.uid, organisations.c.name, keys.c.id, keys.c.role)
        .join(keys, keys.c.organisation_id == organisations.c.id)
        .where(keys.c.hash == hash_secret(secret), keys.c.revoked_ms.is_(None))
    ).first()
    return Key(row[3], Organisation(row[0], row[1], row[2]), row[4]) if row else None
