"""Who is asking, and what they may do: the one place where every route's permission is decided.

A route says what it needs with `@needs(...)` on a router of `GuardedRoute`s, which find out who asks before
anything of the request's body is read. What it names of the organisation is then looked up within that
organisation alone, so that what is not yours is answered as what is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import urlsplit

from infra.server.api.body import BoundedRoute
from infra.server.refusals import Refused
from infra.server.store import access, sessions, sign_in

if TYPE_CHECKING:
    from fastapi import Request

    from infra.server.api.uses import Uses
    from infra.server.store.access import Organisation, Role
    from infra.server.store.sessions import Session
    from infra.server.store.sign_in import SignIn
    from infra.server.store.store import Store

__all__ = [
    "GuardedRoute",
    "Kind",
    "Permission",
    "Principal",
    "cookie_name",
    "needs",
    "principal_of",
    "refuse_other_sites",
    "require",
    "session_of",
    "sign_in_secret",
    "store_of",
]

Permission = Literal["known", "ingest", "read", "write", "manage"]
"""`known` is whoever we know; `ingest` adds to one experiment: a token may no more. `read` looks;
`write` changes experiments, folders and views; `manage` changes members and keys."""

Kind = Literal["key", "session", "token", "loopback"]
"""An API key, a person who signed in, an experiment's token, or somebody at the machine itself."""

_LEAST: dict[Permission, Role] = {
    "known": "viewer",
    "read": "viewer",
    "ingest": "member",
    "write": "member",
    "manage": "owner",
}
_TOKENS = {"known", "ingest"}
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
_LOOPBACK_NAMES = {"127.0.0.1", "::1", "localhost"}
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, within one organisation.

    `id` is the key's or the person's row; None at the machine itself. `session` is what an experiment's token
    writes to, `person` is who signed in; None for everybody else. A token has no role.
    """

    organisation: Organisation
    kind: Kind
    role: Role | None
    id: int | None = None
    session: Session | None = None
    person: SignIn | None = None

    def may(self, permission: Permission) -> bool:
        """Whether the role, or the token, allows it."""
        if self.role is None:
            return permission in _TOKENS
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


class GuardedRoute(BoundedRoute):
    """A route that finds out who asks, and refuses them, before it reads parameters or the body.

    An endpoint without `@needs` does not start: what is open to everybody lives on a plain router.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.permission, self.keyless = endpoint.needs  # type: ignore[attr-defined]  # set by needs
        super().__init__(path, endpoint, **options)

    async def admit(self, request: Request) -> None:
        """Find out who asks; refuse them, or let them go on."""
        await require(
            request,
            self.permission,
            keyless=self.keyless,
            experiment_uid=request.path_params.get("experiment_id"),
        )


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
    if principal.kind == "token" and permission not in _TOKENS:
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
    cookie = sign_in_secret(request)
    if cookie is not None and (found := await _of_person(request, cookie)) is not None:
        return found
    if keyless and _is_at_the_machine(request):
        return await _of_loopback(request)
    raise Refused("unauthorized", "send `Authorization: Bearer <key>`, or sign in")


async def _of_key(request: Request, secret: str) -> Principal:
    key = await store_of(request).read(lambda connection: access.find_key(connection, secret))
    if key is None:
        raise _unknown()
    uses: Uses = request.app.state.uses
    uses.note(key.id)
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


async def _of_person(request: Request, secret: str) -> Principal | None:
    store = store_of(request)
    found = await store.read(lambda connection: sign_in.find(connection, secret, now_ms=store.clock_ms()))
    if found is None:
        return None
    if request.method not in _SAFE_METHODS:
        refuse_other_sites(request, unless_said=False)
    return Principal(found.organisation, "session", found.role, id=found.person_id, person=found)


def _is_at_the_machine(request: Request) -> bool:
    """Whether nobody but who can log in to this machine can have asked.

    A page of some other site whose name was pointed at this machine comes with that name, and what came
    through a proxy with a proxy's headers.
    """
    return (
        request.app.state.keyless
        and request.url.hostname in _LOOPBACK_NAMES
        and not any(name in request.headers for name in _FORWARDED)
    )


async def _of_loopback(request: Request) -> Principal:
    organisation = await store_of(request).read(access.first_organisation)
    if organisation is None:
        raise Refused("not_found", "there is no organisation")
    return Principal(organisation, "loopback", "viewer")


def cookie_name(request: Request) -> str:
    """Return the name of the cookie that carries a sign-in.

    Behind TLS its prefix makes browsers hold the cookie to this host, to TLS and to us as who set it.
    """
    return "__Host-slugline" if request.url.scheme == "https" else "slugline"


def sign_in_secret(request: Request) -> str | None:
    """Return the sign-in's secret that the request carries; None without one."""
    return request.cookies.get(cookie_name(request))


def refuse_other_sites(request: Request, *, unless_said: bool = True) -> None:
    """Refuse what a page of another site made a browser send.

    Browsers say where a request comes from, in one header or the other. `unless_said` lets pass what says
    nothing: no browser sent it, which is good enough where no cookie speaks for the sender.

    Raises:
        Refused: It comes from elsewhere, or it does not say.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        good = site == "same-origin"
    elif origin is not None:
        good = urlsplit(origin).netloc == request.headers.get("host")
    else:
        good = unless_said
    if not good:
        raise Refused("forbidden", "a page of another site may not ask this for you")


def _unknown() -> Refused:
    return Refused("unauthorized", "the key is not known or was revoked")


def _bearer(request: Request) -> str:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Refused("unauthorized", "send `Authorization: Bearer <key>`")
    return secret.strip()
