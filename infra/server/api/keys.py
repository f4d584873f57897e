"""/api/v1/keys: the organisation's API keys, which an owner makes and revokes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
from fastapi import APIRouter, Request, Response

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.texts import Name
from infra.server.api.v1.requests import answer, body_of, encoded
from infra.server.store import access
from infra.server.store.access import Role

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.server.api.uses import Uses
    from infra.server.store.database import AnyRow

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute, tags=["keys"])


class Key(msgspec.Struct):
    """A key without its secret."""

    id: str
    name: str
    role: Role
    created_at_ms: int
    revoked_at_ms: int | None
    last_used_at_ms: int | None


class Keys(msgspec.Struct):
    """All keys, revoked ones too."""

    keys: list[Key]


class OneKey(msgspec.Struct):
    """One key."""

    key: Key


class NewKey(OneKey):
    """A key with its secret, which is never shown again."""

    secret: str


class CreateKey(msgspec.Struct, forbid_unknown_fields=True):
    """What to make. A `viewer` key only reads; a `member` key writes; an `owner` key manages."""

    name: Name
    role: Role = "member"


@router.get("/api/v1/keys")
@needs("manage")
@describe(Operation(data=Keys))
async def list_keys(request: Request) -> Response:
    """List the keys, the oldest first."""
    organisation = principal_of(request).organisation
    rows = await store_of(request).read(lambda connection: access.keys_of(connection, organisation.id))
    return answer(encoded(Keys([_shown(request, row) for row in rows])))


@router.post("/api/v1/keys")
@needs("manage")
@describe(Operation(data=NewKey, body=CreateKey))
async def create_key(request: Request) -> Response:
    """Make a key and show its secret, once: a repeated request makes another key."""
    asked = await body_of(request, CreateKey)
    organisation, store = principal_of(request).organisation, store_of(request)

    def create(connection: Connection) -> tuple[AnyRow, str]:
        uid, secret = access.create_key(
            connection, organisation.id, asked.name, role=asked.role, now_ms=store.clock_ms()
        )
        return access.keys_of(connection, organisation.id, uid)[0], secret

    row, secret = await store.write(create)
    return answer(encoded(NewKey(_shown(request, row), secret)))


@router.delete("/api/v1/keys/{key_id}")
@needs("manage")
@describe(Operation(data=OneKey, codes=("key_not_found", "last_owner")))
async def revoke_key(request: Request, key_id: str) -> Response:
    """End a key, at once and for ever. It stays in the list."""
    organisation, store = principal_of(request).organisation, store_of(request)
    row = await store.write(
        lambda connection: access.revoke_key(connection, organisation.id, key_id, now_ms=store.clock_ms())
    )
    return answer(encoded(OneKey(_shown(request, row))))


def _shown(request: Request, row: AnyRow) -> Key:
    uses = cast("Uses", request.app.state.uses)
    return Key(
        id=row.uid,
        name=row.name,
        role=row.role,
        created_at_ms=row.created_ms,
        revoked_at_ms=row.revoked_ms,
        last_used_at_ms=uses.latest(row.id, row.last_used_ms),
    )
