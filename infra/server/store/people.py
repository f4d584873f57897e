"""People, and the organisations that they are members of. The last owner stays."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, func, insert, select, update

from infra.server.refusals import Refused
from infra.server.store import access, sign_in
from infra.server.store.database import new_id
from infra.server.store.schema import memberships, organisations, people

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.server.store.access import Role
    from infra.server.store.database import AnyRow

__all__ = ["add", "change", "find", "members", "organisations_of", "remove"]

_MEMBER = (
    people.c.id,
    people.c.uid,
    people.c.email,
    people.c.name,
    people.c.password_hash,
    memberships.c.role,
    memberships.c.created_ms,
)


def add(
    connection: Connection,
    organisation_id: int,
    *,
    email: str,
    name: str,
    role: Role,
    password_hash: str | None,
    now_ms: int,
) -> AnyRow:
    """Make a person a member. Somebody who is known by this address already keeps their name and password.

    Raises:
        Refused: They are a member already.
    """
    known = connection.execute(select(people.c.id).where(people.c.email == email)).scalar()
    if known is None:
        known = new_id(
            connection.execute(
                insert(people).values(
                    uid=str(uuid.uuid4()),
                    email=email,
                    name=name,
                    password_hash=password_hash,
                    created_ms=now_ms,
                )
            )
        )
    elif (there := _members(connection, organisation_id, person_id=known)) != []:
        raise Refused(
            "member_already_exists",
            "a member has this address already",
            details={"memberId": there[0].uid},
        )
    connection.execute(
        insert(memberships).values(
            organisation_id=organisation_id, person_id=known, role=role, created_ms=now_ms
        )
    )
    return _members(connection, organisation_id, person_id=known)[0]


def members(connection: Connection, organisation_id: int) -> Sequence[AnyRow]:
    """Return the members of an organisation with their roles, the first that came first."""
    return _members(connection, organisation_id)


def find(connection: Connection, organisation_id: int, uid: str) -> AnyRow:
    """Return a member.

    Raises:
        Refused: Nobody of this id is a member; another organisation's member is not there.
    """
    found = _members(connection, organisation_id, uid=uid)
    if not found:
        raise Refused("member_not_found", "no member has this id")
    return found[0]


def change(
    connection: Connection,
    organisation_id: int,
    uid: str,
    *,
    by_themself: bool,
    role: Role | None = None,
    name: str | None = None,
    password_hash: str | None = None,
) -> AnyRow:
    """Change what is set, of a member. A new password ends every sign-in of theirs.

    Whoever belongs to another organisation too is nobody's to rename or to give a password but their own.

    Raises:
        Refused: There is no such member, they are the last owner, or they are not this organisation's alone.
    """
    access.hold(connection, organisation_id)
    member = find(connection, organisation_id, uid)
    own = {"name": name, "password_hash": password_hash}
    own = {field: value for field, value in own.items() if value is not None}
    if own:
        if not by_themself and len(organisations_of(connection, member.id)) > 1:
            raise Refused("forbidden", "they belong to another organisation too: they change it themselves")
        connection.execute(update(people).where(people.c.id == member.id).values(**own))
    if password_hash is not None:
        sign_in.end_all(connection, member.id)
    if role is not None and role != member.role:
        connection.execute(
            update(memberships)
            .where(memberships.c.organisation_id == organisation_id, memberships.c.person_id == member.id)
            .values(role=role)
        )
        _keep_an_owner(connection, organisation_id, member)
    return find(connection, organisation_id, uid)


def remove(connection: Connection, organisation_id: int, uid: str) -> AnyRow:
    """End a membership and its sign-ins. A person who is a member nowhere is forgotten.

    Raises:
        Refused: There is no such member, or they are the last owner.
    """
    access.hold(connection, organisation_id)
    member = find(connection, organisation_id, uid)
    connection.execute(
        delete(memberships).where(
            memberships.c.organisation_id == organisation_id, memberships.c.person_id == member.id
        )
    )
    sign_in.end_all(connection, member.id, organisation_id=organisation_id)
    _keep_an_owner(connection, organisation_id, member)
    if not organisations_of(connection, member.id):
        connection.execute(delete(people).where(people.c.id == member.id))
    return member


def organisations_of(connection: Connection, person_id: int) -> Sequence[AnyRow]:
    """Return the organisations that a person is a member of, with their role; the first they joined first."""
    return connection.execute(
        select(organisations.c.id, organisations.c.uid, organisations.c.name, memberships.c.role)
        .join(memberships, memberships.c.organisation_id == organisations.c.id)
        .where(memberships.c.person_id == person_id)
        .order_by(memberships.c.created_ms, organisations.c.id)
    ).all()


def _keep_an_owner(connection: Connection, organisation_id: int, changed: AnyRow) -> None:
    if changed.role != "owner":
        return
    owners = connection.execute(
        select(func.count()).where(
            memberships.c.organisation_id == organisation_id, memberships.c.role == "owner"
        )
    ).scalar()
    if not owners:
        raise Refused("last_owner", "they are the last owner: make somebody else an owner first")
    access.keep_an_owner(connection, organisation_id)


def _members(
    connection: Connection, organisation_id: int, *, uid: str | None = None, person_id: int | None = None
) -> Sequence[AnyRow]:
    found = (
        select(*_MEMBER)
        .join(memberships, memberships.c.person_id == people.c.id)
        .where(memberships.c.organisation_id == organisation_id)
        .order_by(memberships.c.created_ms, people.c.id)
    )
    if uid is not None:
        found = found.where(people.c.uid == uid)
    if person_id is not None:
        found = found.where(people.c.id == person_id)
    return connection.execute(found).all()
