"""Signing in: passwords, and the secret that a browser then carries. Both are kept as hashes only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import argon2
from sqlalchemy import Connection, delete, insert, select

from infra.server.store.access import Organisation, Role, hash_secret, new_secret
from infra.server.store.schema import memberships, organisations, people, sign_ins

__all__ = [
    "LIFETIME_MS",
    "MIN_PASSWORD_LENGTH",
    "SignIn",
    "begin",
    "end",
    "end_all",
    "find",
    "hash_password",
    "password_of",
    "verify_password",
]

LIFETIME_MS = 14 * 24 * 3_600_000
MIN_PASSWORD_LENGTH = 10


@dataclass(frozen=True, slots=True)
class SignIn:
    """A person's browser: who they are, and what they are in the organisation that they look at."""

    person_id: int
    person_uid: str
    email: str
    name: str
    organisation: Organisation
    role: Role
    expires_ms: int


def hash_password(password: str) -> str:
    """Return what is stored of a password. Takes some 50 ms and 64 MiB: never in the writer's thread."""
    return _hasher().hash(password)


def verify_password(stored: str | None, password: str) -> bool:
    """Whether a password is the one that was stored; None, for nobody, takes as long and is no password."""
    nobodys = _nobodys()
    try:
        _hasher().verify(nobodys if stored is None else stored, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False
    return stored is not None


def password_of(connection: Connection, email: str) -> tuple[int, str | None] | None:
    """Return a person's id and what is stored of their password; None when nobody has this address."""
    row = connection.execute(
        select(people.c.id, people.c.password_hash).where(people.c.email == email)
    ).first()
    return (row[0], row[1]) if row else None


def begin(connection: Connection, person_id: int, organisation_uid: str | None, *, now_ms: int) -> str | None:
    """Store a sign-in and return its secret; None when the person is no member there.

    `organisation_uid` unset means the one that they joined first. Sign-ins that have expired are forgotten.
    """
    found = (
        select(organisations.c.id)
        .join(memberships, memberships.c.organisation_id == organisations.c.id)
        .where(memberships.c.person_id == person_id)
        .order_by(memberships.c.created_ms, organisations.c.id)
        .limit(1)
    )
    if organisation_uid is not None:
        found = found.where(organisations.c.uid == organisation_uid)
    organisation_id = connection.execute(found).scalar()
    if organisation_id is None:
        return None
    connection.execute(delete(sign_ins).where(sign_ins.c.expires_ms <= now_ms))
    secret = new_secret("sls")
    connection.execute(
        insert(sign_ins).values(
            hash=hash_secret(secret),
            person_id=person_id,
            organisation_id=organisation_id,
            created_ms=now_ms,
            expires_ms=now_ms + LIFETIME_MS,
        )
    )
    return secret


def find(connection: Connection, secret: str, *, now_ms: int) -> SignIn | None:
    """Return a sign-in by its secret, with the role as it is now; None when it is unknown, over or ended."""
    row = connection.execute(
        select(
            people.c.id,
            people.c.uid,
            people.c.email,
            people.c.name,
            organisations.c.id,
            organisations.c.uid,
            organisations.c.name,
            memberships.c.role,
            sign_ins.c.expires_ms,
        )
        .select_from(sign_ins)
        .join(people, people.c.id == sign_ins.c.person_id)
        .join(organisations, organisations.c.id == sign_ins.c.organisation_id)
        .join(
            memberships,
            (memberships.c.person_id == people.c.id) & (memberships.c.organisation_id == organisations.c.id),
        )
        .where(sign_ins.c.hash == hash_secret(secret), sign_ins.c.expires_ms > now_ms)
    ).first()
    if row is None:
        return None
    return SignIn(row[0], row[1], row[2], row[3], Organisation(row[4], row[5], row[6]), row[7], row[8])


def end(connection: Connection, secret: str) -> None:
    """Forget a sign-in."""
    connection.execute(delete(sign_ins).where(sign_ins.c.hash == hash_secret(secret)))


def end_all(connection: Connection, person_id: int, *, organisation_id: int | None = None) -> None:
    """Forget every sign-in of a person; only those into one organisation if it is set."""
    gone = delete(sign_ins).where(sign_ins.c.person_id == person_id)
    if organisation_id is not None:
        gone = gone.where(sign_ins.c.organisation_id == organisation_id)
    connection.execute(gone)


@cache
def _hasher() -> argon2.PasswordHasher:
    return argon2.PasswordHasher()  # argon2id as RFC 9106 has it for less memory: 64 MiB, three passes


@cache
def _nobodys() -> str:
    return hash_password(new_secret("none"))
