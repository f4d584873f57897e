"""/api/v1/auth: who a key, a token or a browser speaks for; signing in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from fastapi import APIRouter, Request, Response

from infra.server.api.body import BoundedRoute
from infra.server.api.context import (
    GuardedRoute,
    cookie_name,
    needs,
    principal_of,
    refuse_other_sites,
    sign_in_secret,
    store_of,
)
from infra.server.api.described import Operation, describe
from infra.server.api.passwords import passwords_of
from infra.server.api.v1.requests import answer, body_of, encoded
from infra.server.refusals import Refused
from infra.server.store import people, sign_in
from infra.server.store.access import Role

if TYPE_CHECKING:
    from infra.server.api.context import Kind, Principal

__all__ = ["StrangersRoute", "forget_sign_in", "keep_sign_in", "open_router", "router"]

_KINDS: dict[Kind, Literal["api_key", "session", "ingestion_key"]] = {
    "key": "api_key",
    "session": "session",
    "token": "ingestion_key",
}


class StrangersRoute(BoundedRoute):
    """A route that anybody may send something to: hardly anything."""

    max_body_bytes = 16 * 2**10


router = APIRouter(route_class=GuardedRoute, tags=["auth"])
open_router = APIRouter(route_class=StrangersRoute, tags=["auth"])


class Auth(msgspec.Struct):
    """How somebody is known, and what they may do; an experiment's token has no role but its experiment."""

    kind: Literal["api_key", "session", "ingestion_key"]
    role: Role | None
    experiment_id: str | None = None


class Organization(msgspec.Struct):
    """Whose everything is."""

    id: str
    name: str


class Membership(Organization):
    """An organisation that somebody is a member of."""

    role: Role


class Person(msgspec.Struct):
    """Who signed in, and where they could."""

    id: str
    email: str
    name: str
    organizations: list[Membership]


class Status(msgspec.Struct):
    """Whom a request speaks for. `person` is there for whoever signed in."""

    auth: Auth
    organization: Organization
    person: Person | None = None


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """Who wants in, and where: unset, `organization_id` means the one they joined first."""

    email: Annotated[str, msgspec.Meta(max_length=254)]
    password: Annotated[str, msgspec.Meta(max_length=1024)]
    organization_id: Annotated[str, msgspec.Meta(max_length=64)] | None = None


class SignedIn(msgspec.Struct):
    """Until when a sign-in lasts; the secret is in the cookie alone."""

    expires_at_ms: int


class SignedOut(msgspec.Struct):
    """It is over."""

    ok: Literal[True] = True


@router.get("/api/v1/auth/status")
@router.get("/api/v2/auth/status")
@needs("known")
@describe(Operation(data=Status))
async def auth_status(request: Request) -> Response:
    """Say whom a key, a token or a browser speaks for."""
    principal = principal_of(request)
    organisation = principal.organisation
    experiment_id = None if principal.session is None else principal.session.experiment_uid
    status = Status(
        auth=Auth(kind=_KINDS[principal.kind], role=principal.role, experiment_id=experiment_id),
        organization=Organization(id=organisation.uid, name=organisation.name),
        person=await _person(request, principal),
    )
    return answer(encoded(status))


@open_router.post("/api/v1/auth/sign-in")
@describe(Operation(data=SignedIn, body=SignIn, codes=("sign_in_refused", "too_many_attempts", "forbidden")))
async def post_sign_in(request: Request) -> Response:
    """Sign in with a password; the answer sets the cookie that a browser then carries."""
    refuse_other_sites(request)
    asked = await body_of(request, SignIn)
    secret = await passwords_of(request).sign_in(
        request, asked.email, asked.password, organisation_uid=asked.organization_id
    )
    response = answer(encoded(SignedIn(store_of(request).clock_ms() + sign_in.LIFETIME_MS)))
    keep_sign_in(request, response, secret)
    return response


@router.post("/api/v1/auth/sign-out")
@needs("known")
@describe(Operation(data=SignedOut))
async def post_sign_out(request: Request) -> Response:
    """End the sign-in that the request comes with."""
    secret = sign_in_secret(request)
    if principal_of(request).person is None or secret is None:
        raise Refused("forbidden", "only who signed in can sign out: a key is revoked, a token too")
    await store_of(request).write(lambda connection: sign_in.end(connection, secret))
    response = answer(encoded(SignedOut()))
    forget_sign_in(request, response)
    return response


def keep_sign_in(request: Request, response: Response, secret: str) -> None:
    """Have the browser carry a sign-in: to us alone, over TLS where there is TLS, out of scripts' reach."""
    response.set_cookie(
        cookie_name(request),
        secret,
        max_age=sign_in.LIFETIME_MS // 1000,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


def forget_sign_in(request: Request, response: Response) -> None:
    """Have the browser forget it."""
    response.delete_cookie(
        cookie_name(request),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


async def _person(request: Request, principal: Principal) -> Person | None:
    if (person := principal.person) is None:
        return None
    rows = await store_of(request).read(
        lambda connection: people.organisations_of(connection, person.person_id)
    )
    return Person(
        id=person.person_uid,
        email=person.email,
        name=person.name,
        organizations=[Membership(id=row.uid, name=row.name, role=row.role) for row in rows],
    )
