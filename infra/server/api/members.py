"""/api/v1/members: the people of an organisation and their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Request, Response

from infra.server.api.context import GuardedRoute, Principal, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.passwords import passwords_of
from infra.server.api.texts import Email, Name, Password
from infra.server.api.v1.requests import answer, body_of, change, encoded, look
from infra.server.refusals import Refused
from infra.server.store import people
from infra.server.store.access import Role

if TYPE_CHECKING:
    from infra.server.store.database import AnyRow

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute, tags=["members"])


class Member(msgspec.Struct):
    """Somebody with a role here. Without a password they cannot sign in yet."""

    id: str
    email: str
    name: str
    role: Role
    has_password: bool
    created_at_ms: int


class Members(msgspec.Struct):
    """All members."""

    members: list[Member]


class OneMember(msgspec.Struct):
    """One member."""

    member: Member


class AddMember(msgspec.Struct, forbid_unknown_fields=True):
    """Whom to add. Somebody whom the server knows already keeps their name and password."""

    email: Email
    name: Name | None = None
    role: Role = "member"
    password: Password | None = None


class ChangeMember(msgspec.Struct, forbid_unknown_fields=True):
    """What to change; what is left out stays. Whoever changes their own password says the one they have."""

    role: Role | None = None
    name: Name | None = None
    password: Password | None = None
    current_password: str | None = None


@router.get("/api/v1/members")
@needs("read")
@describe(Operation(data=Members))
async def list_members(request: Request) -> Response:
    """List the members, the first that came first."""
    organisation = principal_of(request).organisation
    return await look(
        request,
        lambda connection: Members([_shown(row) for row in people.members(connection, organisation.id)]),
    )


@router.post("/api/v1/members")
@needs("manage")
@describe(Operation(data=OneMember, body=AddMember, codes=("member_already_exists",)))
async def add_member(request: Request) -> Response:
    """Make somebody a member."""
    asked = await body_of(request, AddMember)
    organisation, store = principal_of(request).organisation, store_of(request)
    email = asked.email.lower()
    stored = None if asked.password is None else await passwords_of(request).hash(asked.password)
    row = await store.write(
        lambda connection: people.add(
            connection,
            organisation.id,
            email=email,
            name=asked.name or email.partition("@")[0],
            role=asked.role,
            password_hash=stored,
            now_ms=store.clock_ms(),
        )
    )
    return answer(encoded(OneMember(_shown(row))))


@router.patch("/api/v1/members/{member_id}")
@needs("read")
@describe(
    Operation(
        data=OneMember,
        body=ChangeMember,
        codes=("member_not_found", "last_owner", "sign_in_refused", "too_many_attempts"),
    )
)
async def change_member(request: Request, member_id: str) -> Response:
    """Change a member: an owner anybody, everybody their own name and password.

    A new password ends every sign-in of theirs.
    """
    asked = await body_of(request, ChangeMember)
    principal, store = principal_of(request), store_of(request)
    by_themself = principal.person is not None and principal.person.person_uid == member_id
    if not by_themself or asked.role is not None:
        principal.demand("manage")
    stored = None
    if asked.password is not None:
        if by_themself:
            await _check_current(request, principal, asked.current_password)
        stored = await passwords_of(request).hash(asked.password)
    row = await store.write(
        lambda connection: people.change(
            connection,
            principal.organisation.id,
            member_id,
            by_themself=by_themself,
            role=asked.role,
            name=asked.name,
            password_hash=stored,
        )
    )
    return answer(encoded(OneMember(_shown(row))))


@router.delete("/api/v1/members/{member_id}")
@needs("manage")
@describe(Operation(repeatable=True, data=OneMember, codes=("member_not_found", "last_owner")))
async def remove_member(request: Request, member_id: str) -> Response:
    """End a membership, and with it their sign-ins here. The last owner stays."""
    organisation = principal_of(request).organisation
    return await change(
        request,
        lambda connection: OneMember(_shown(people.remove(connection, organisation.id, member_id))),
    )


async def _check_current(request: Request, principal: Principal, password: str | None) -> None:
    assert principal.person is not None
    if password is None:
        raise Refused("sign_in_refused", "current_password is needed to change your own password")
    await passwords_of(request).check(request, principal.person.email, password)


def _shown(row: AnyRow) -> Member:
    return Member(
        id=row.uid,
        email=row.email,
        name=row.name,
        role=row.role,
        has_password=row.password_hash is not None,
        created_at_ms=row.created_ms,
    )
