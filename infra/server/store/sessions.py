"""Sessions: the processes that write to an experiment, in the order they began, and their tokens.

Opening an experiment begins a session; its token tells which. Our own sender's message ids carry the session
they belong to, so a resume can deliver what an earlier process could not, under that process's session.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, insert, select, update

from infra.server.refusals import Refused
from infra.server.store import sql
from infra.server.store.access import Organisation, hash_secret, new_secret
from infra.server.store.database import AnyRow, new_id
from infra.server.store.schema import sessions, tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "TOKEN_LIFETIME_MS",
    "TOKEN_PREFIX",
    "Session",
    "Token",
    "attempts",
    "begin",
    "find",
    "is_older",
    "issue",
    "newest",
    "parse_message_id",
    "parse_message_ids",
    "ranks",
    "refresh",
    "revoke",
]

TOKEN_LIFETIME_MS = 24 * 3_600_000
TOKEN_PREFIX = "slt_"  # noqa: S105 - what every token begins with
_OWN_ID = re.compile(r"([0-9a-f]{32})\.(0|[1-9][0-9]{0,14})")
_MAX_SEQUENCE = 10**15


@dataclass(frozen=True, slots=True)
class Session:
    """Who writes: the session of a token, within its experiment."""

    id: int
    experiment_id: int
    experiment_uid: str


@dataclass(frozen=True, slots=True)
class Token:
    """A new token. `secret` cannot be read again."""

    id: int
    secret: str
    expires_ms: int


_BY_HASH = (
    "SELECT tokens.session_id, tokens.expires_ms, tokens.revoked_ms, sessions.experiment_id,"
    " experiments.uid AS experiment_uid, experiments.organisation_id,"
    " organisations.uid AS organisation_uid, organisations.name AS organisation_name"
    " FROM tokens JOIN sessions ON sessions.id = tokens.session_id"
    " JOIN experiments ON experiments.id = sessions.experiment_id"
    " JOIN organisations ON organisations.id = experiments.organisation_id"
    " WHERE tokens.hash = ?"
)


def parse_message_id(message_id: str) -> tuple[str, int] | None:
    """Return the session and the sequence number of one of our sender's ids; None for anybody else's."""
    if len(message_id) < 34 or message_id[32] != ".":
        return None
    match = _OWN_ID.fullmatch(message_id)
    return (match[1], int(match[2])) if match else None


def parse_message_ids(message_ids: Sequence[str]) -> tuple[str, Sequence[int]] | None:
    """Return the one session and the sequence numbers of ids that are all of one of our senders; else None.

    The same as `parse_message_id` for each, at a fifth of the time, and at a twentieth where the numbers
    follow one another: those come as a range.
    """
    first = parse_message_id(message_ids[0])
    if first is None:
        return None
    prefix, following = first[0] + ".", range(first[1], first[1] + len(message_ids))
    if following[-1] < _MAX_SEQUENCE and message_ids == [f"{prefix}{number}" for number in following]:
        return first[0], following
    if not all(map(str.startswith, message_ids, repeat(prefix))):
        return None
    tails = [message_id[33:] for message_id in message_ids]
    try:
        numbers = list(map(int, tails))
    except ValueError:
        return None
    # Written as we write them, without a sign, leading zeros or digits of other scripts.
    if list(map(str, numbers)) != tails or not 0 <= min(numbers) <= max(numbers) < _MAX_SEQUENCE:
        return None
    return first[0], numbers


def begin(connection: Connection, experiment_id: int, *, now_ms: int) -> int:
    """Begin a session and return its id."""
    row = connection.execute(
        insert(sessions).values(experiment_id=experiment_id, opened_ms=now_ms, next_sequence=0, carried=False)
    )
    return new_id(row)


def issue(
    connection: Connection, session_id: int, *, now_ms: int, lifetime_ms: int = TOKEN_LIFETIME_MS
) -> Token:
    """Store a new token of a session. Older ones stay good until they expire or are revoked."""
    secret, expires_ms = new_secret(TOKEN_PREFIX.rstrip("_")), now_ms + lifetime_ms
    row = connection.execute(
        insert(tokens).values(
            hash=hash_secret(secret), session_id=session_id, created_ms=now_ms, expires_ms=expires_ms
        )
    )
    return Token(new_id(row), secret, expires_ms)


def newest(connection: Connection, experiment_id: int, *, now_ms: int) -> int:
    """Return the session of an experiment that began last; one begun now where there is none.

    In its name stands what is said of an experiment with a key and not by a process of its own.
    """
    found = connection.execute(
        select(func.max(sessions.c.id)).where(sessions.c.experiment_id == experiment_id)
    ).scalar()
    return begin(connection, experiment_id, now_ms=now_ms) if found is None else int(found)


def find(
    connection: Connection, secret: str, experiment_uid: str | None, *, now_ms: int
) -> tuple[Organisation, Session] | None:
    """Return whose a token is, and its session; None when it is unknown, revoked, expired or another's.

    `experiment_uid` unset means any experiment.
    """
    row = _token_row(connection, secret, experiment_uid)
    if row is None or row.revoked_ms is not None or row.expires_ms <= now_ms:
        return None
    organisation = Organisation(row.organisation_id, row.organisation_uid, row.organisation_name)
    return organisation, Session(row.session_id, row.experiment_id, row.experiment_uid)


def refresh(
    connection: Connection, secret: str, experiment_uid: str, *, organisation_id: int, now_ms: int
) -> Token:
    """Return a new token for the session of an old one, which may have expired.

    Raises:
        Refused: The old token is unknown, revoked, or another experiment's: the client opens again.
    """
    row = _token_row(connection, secret, experiment_uid)
    if row is None or row.revoked_ms is not None or row.organisation_id != organisation_id:
        raise Refused(
            "token_not_found", "experimentToken is not known or was revoked: open the experiment again"
        )
    return issue(connection, row.session_id, now_ms=now_ms)


def revoke(connection: Connection, session_id: int, *, now_ms: int) -> None:
    """End every token of a session."""
    connection.execute(
        update(tokens)
        .where(tokens.c.session_id == session_id, tokens.c.revoked_ms.is_(None))
        .values(revoked_ms=now_ms)
    )


def ranks(connection: Connection, experiment_id: int) -> dict[int, int]:
    """Return the place of every session of an experiment in the order in which they began."""
    return {row.id: place for place, row in enumerate(_in_order(connection, experiment_id))}


def attempts(connection: Connection, experiment_id: int) -> dict[int, int]:
    """Return the number of the attempt that each session of an experiment is, from 1 as they began.

    A token's session and that of the sender who starts under it are one attempt.
    """
    rows = _in_order(connection, experiment_id)
    named = {row.opened_id for row in rows if not row.carried}
    number, numbers = 1, {}
    for row in rows:
        numbers[row.id] = number
        number += row.id not in named
    return numbers


def _in_order(connection: Connection, experiment_id: int) -> list[AnyRow]:
    rows = connection.execute(
        select(sessions.c.id, sessions.c.opened_id, sessions.c.carried).where(
            sessions.c.experiment_id == experiment_id
        )
    ).all()
    return sorted(rows, key=_began)


def is_older(connection: Connection, session_id: int, than: int) -> bool:
    """Whether a session began before another one of the same experiment."""
    rows = connection.execute(
        select(sessions.c.id, sessions.c.opened_id, sessions.c.carried).where(
            sessions.c.id.in_([session_id, than])
        )
    ).all()
    began = {row.id: _began(row) for row in rows}
    return began[session_id] < began[than]


def _began(row: AnyRow) -> tuple[int, bool, int]:
    """Order sessions as their processes began: one whose events another carried came before that one."""
    return (row.opened_id or row.id, not row.carried, row.id)


def _token_row(connection: Connection, secret: str, experiment_uid: str | None) -> AnyRow | None:
    # Every batch asks this: built by SQLAlchemy each time, it would take longer than it takes to answer.
    of_experiment = "" if experiment_uid is None else " AND experiments.uid = ?"
    values = (hash_secret(secret), *(() if experiment_uid is None else (experiment_uid,)))
    return sql.one(connection, _BY_HASH + of_experiment, values)
