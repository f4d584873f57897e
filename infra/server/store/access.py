"""Organisations and the keys that act for them. A secret is shown once; what is kept is its hash."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from sqlalchemy import Connection, insert, select, update

from infra.server.refusals import Refused
from infra.server.store.database import new_id
from infra.server.store.schema import keys, memberships, organisations, people

if TYPE_CHECKING:
    from infra.server.store.database import AnyRow

__all__ = [
    "ROLES",
    "Key",
    "Organisation",
    "Role",
    "all_organisations",
    "create_key",
    "create_organisation",
    "find_key",
    "first_organisation",
    "hash_secret",
    "hold",
    "keep_an_owner",
    "keys_of",
    "new_secret",
    "revoke_key",
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
    connection: Connection, organisation_id: int, name: str, *, role: Role, now_ms: int
) -> tuple[str, str]:
    """Store a new key and return its id and its secret, which cannot be read again."""
    uid, secret = str(uuid.uuid4()), new_secret("slk")
    connection.execute(
        insert(keys).values(
            uid=uid,
            organisation_id=organisation_id,
            name=name,
            hash=hash_secret(secret),
            role=role,
            created_ms=now_ms,
        )
    )
    return uid, secret


def keys_of(connection: Connection, organisation_id: int, uid: str | None = None) -> list[AnyRow]:
    """Return an organisation's keys, revoked ones too, the oldest first; with `uid` only that one."""
    found = select(keys).where(keys.c.organisation_id == organisation_id).order_by(keys.c.id)
    return list(connection.execute(found if uid is None else found.where(keys.c.uid == uid)))


def revoke_key(connection: Connection, organisation_id: int, uid: str, *, now_ms: int) -> AnyRow:
    """End a key, at once and for ever, and return it; one that was revoked before stays as it is.

    Raises:
        Refused: There is none of this id, or nobody could manage the organisation without it.
    """
    hold(connection, organisation_id)
    if not (found := keys_of(connection, organisation_id, uid)):
        raise Refused("key_not_found", "no key has this id")
    if found[0].revoked_ms is None:
        connection.execute(update(keys).where(keys.c.id == found[0].id).values(revoked_ms=now_ms))
        keep_an_owner(connection, organisation_id)
    return keys_of(connection, organisation_id, uid)[0]


def hold(connection: Connection, organisation_id: int) -> None:
    """Let no other process change who owns an organisation before this transaction ends."""
    connection.execute(
        select(organisations.c.id).where(organisations.c.id == organisation_id).with_for_update()
    )


def keep_an_owner(connection: Connection, organisation_id: int) -> None:
    """Refuse a change after which nobody can manage the organisation: no owner's key, and no owner signs in.

    Raises:
        Refused: So it would be; the change is undone with its transaction.
    """
    key = select(keys.c.id).where(
        keys.c.organisation_id == organisation_id, keys.c.role == "owner", keys.c.revoked_ms.is_(None)
    )
    person = (
        select(people.c.id)
        .join(memberships, memberships.c.person_id == people.c.id)
        .where(
            memberships.c.organisation_id == organisation_id,
            memberships.c.role == "owner",
            people.c.password_hash.is_not(None),
        )
    )
    if all(connection.execute(found.limit(1)).first() is None for found in (key, person)):
        raise Refused(
            "last_owner", "nobody could manage the organisation any more: make another owner's key first"
        )


def all_organisations(connection: Connection) -> list[Organisation]:
    """Return every organisation, the oldest first."""
    rows = connection.execute(select(organisations).order_by(organisations.c.id))
    return [Organisation(row.id, row.uid, row.name) for row in rows]


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
