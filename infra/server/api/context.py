"""Who is asking, and what they may do: the one place where every route's permission is decided.

A route says what it needs with `@needs(...)` on a router of `GuardedRoute`s, which find out who asks before
anything of the request's body is read. What it names of the organisation is then looked up within that
organisation alone, so that what is not yours is answered as what is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from fastapi.routing import APIRoute

from infra.server.refusals import Refused
from infra.server.store import access, sessions

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.responses import Response

    from infra.server.store.access import Organisation, Role
    from infra.server.store.sessions import Session
    from infra.server.store.store import Store

__all__ = [
    "GuardedRoute",
    "Kind",
    "Permission",
    "Principal",
    "needs",
    "principal_of",
    "require",
    "session_of",
    "store_of",
]

Permission = Literal["read", "write", "manage", "ingest"]
"""`read` looks; `write` changes experiments, folders and views; `manage` changes members and keys; `ingest`
adds to one experiment, and is all that an experiment's token may do."""

Kind = Literal["key", "session", "token", "loopback"]
"""An API key, a person who signed in, an experiment's token, or somebody at the machine itself."""

_LEAST: dict[Permission, Role] = {
    "read": "viewer",
    "ingest": "member",
    "write": "member",
    "manage": "owner",
}
_LOOPBACK_NAMES = {"127.0.0.1", "::1", "localhost"}
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, within one organisation.

    `id` is the key's or the person's row; None at the machine itself. `session` is what an experiment's token
    writes to; None for everybody else. A token's role is none at all: it may ingest, nothing else.
    """

    organisation: Organisation
    kind: Kind
    role: Role | None
    id: int | None = None
    session: Session | None = None

    def may(self, permission: Permission) -> bool:
        """Whether the role, or the token, allows it."""
        if self.role is None:
            return permission == "ingest"
        return access.ROLES.index(self.role) >= access.ROLES.index(_LEAST[permission])

    def demand(self, permission: Permission) -> None:
        """Refuse what the role does not allow.

        Raises:
            Refused: It does not; nothing was looked up yet, so the answer says nothing of what is there.
        """
        if not self.may(permission):
            raise Refused("forbidden", f"this needs the role {_LEAST[permission]}, yours is {self.role}")


def store_of(request: Request) -> Store:
    """Return the application's store."""
    return cast("Store", request.app.state.store)


def needs(permission: Permission, *, keyless: bool = False) -> Callable[[F], F]:
    """Say what a route needs. `keyless` ones may be looked at without a key at the machine itself."""

    def marked(endpoint: F) -> F:
        endpoint.needs = (permission, keyless)  # type: ignore[attr-defined]  # read by GuardedRoute
        return endpoint

    return marked


class GuardedRoute(APIRoute):
    """A route that finds out who asks, and refuses them, before it reads parameters or the body.

    An endpoint without `@needs` does not start: what is open to everybody lives on a plain router.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.permission, self.keyless = endpoint.needs  # type: ignore[attr-defined]  # set by needs
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler with the check in front of it."""
        inner = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            await require(
                request,
                self.permission,
                keyless=self.keyless,
                experiment_uid=request.path_params.get("experiment_id"),
            )
            return await inner(request)

        return guarded


def principal_of(request: Request) -> Principal:
    """Return who asks, as the route's guard found."""
    return cast("Principal", request.state.principal)


async def require(
    request: Request,
    permission: Permission,
    *,
    keyless: bool = False,
    experiment_uid: str | None = None,
) -> Principal:
    """Return who asks, who may do what the permission says.

    `experiment_uid` is the experiment that a token must be of. Behind a guard this looks nothing up again.

    Raises:
        Refused: Nobody whom we know, or somebody who may not.
    """
    principal = getattr(request.state, "principal", None)
    if principal is None:
        principal = await _found(request, keyless=keyless, experiment_uid=experiment_uid)
        request.state.principal = principal
    if principal.kind == "token" and permission != "ingest":
        raise _unknown()
    principal.demand(permission)
    return principal


async def session_of(request: Request, experiment_uid: str) -> Session:
    """Return the session whose token the request carries, within the experiment it names.

    Raises:
        Refused: There is no token, or none that is good for this experiment: the client refreshes it.
    """
    principal = await require(request, "ingest", experiment_uid=experiment_uid)
    if principal.session is None:
        raise Refused("unauthorized", "send the experiment's own token, not a key")
    return principal.session


async def _found(request: Request, *, keyless: bool, experiment_uid: str | None) -> Principal:
    if "authorization" in request.headers:
        secret = _bearer(request)
        if secret.startswith(sessions.TOKEN_PREFIX):
            return await _of_token(request, secret, experiment_uid)
        return await _of_key(request, secret)
    if keyless and request.app.state.keyless and request.url.hostname in _LOOPBACK_NAMES:
        return await _of_loopback(request)
    if keyless:
        raise Refused("loopback_only", "without a key, pages are shown only on the machine itself")
    raise Refused("unauthorized", "send `Authorization: Bearer <key>`")


async def _of_key(request: Request, secret: str) -> Principal:
    key = await store_of(request).read(lambda connection: access.find_key(connection, secret))
    if key is None:
        raise _unknown()
    return Principal(key.organisation, "key", key.role, id=key.id)


async def _of_token(request: Request, secret: str, experiment_uid: str | None) -> Principal:
    store = store_of(request)
    found = await store.read(
        lambda connection: sessions.find(connection, secret, experiment_uid, now_ms=store.clock_ms())
    )
    if found is None:
        raise Refused("unauthorized", "the experiment token is not known, has expired or was revoked")
    organisation, session = found
    return Principal(organisation, "token", None, session=session)


async def _of_loopback(request: Request) -> Principal:
    """Return who is at the machine itself.

    A page of some other site whose name was pointed at this machine comes with that name: it is refused before.
    """
    organisation = await store_of(request).read(access.first_organisation)
    if organisation is None:
        raise Refused("not_found", "there is no organisation")
    return Principal(organisation, "loopback", "viewer")


def _unknown() -> Refused:
    return Refused("unauthorized", "the key is not known or was revoked")


def _bearer(request: Request) -> str:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Refused("unauthorized", "send `Authorization: Bearer <key>`")
    return secret.strip()
