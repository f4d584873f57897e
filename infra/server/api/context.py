"""What the routes share: the store, and who is asking."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from infra.server.refusals import Refused
from infra.server.store import access, sessions

if TYPE_CHECKING:
    from starlette.requests import Request

    from infra.server.store.access import Organisation
    from infra.server.store.sessions import Session
    from infra.server.store.store import Store

__all__ = ["organisation_of", "session_of", "store_of", "viewer_of"]

_LOOPBACK_NAMES = {"127.0.0.1", "::1", "localhost"}


def store_of(request: Request) -> Store:
    """Return the application's store."""
    return cast("Store", request.app.state.store)


async def organisation_of(request: Request) -> Organisation:
    """Return the organisation whose key the request carries.

    Raises:
        Refused: There is no key, or none that is good.
    """
    secret = _bearer(request)
    organisation = await store_of(request).read(lambda connection: access.find_key(connection, secret))
    if organisation is None:
        raise Refused("unauthorized", "the key is not known or was revoked")
    return organisation


async def viewer_of(request: Request) -> Organisation:
    """Return the organisation that the request may look at: its key's, or on loopback the first one.

    A page of some other site whose name was pointed at this machine comes with that name, and is refused.

    Raises:
        Refused: There is no good key, and the server is not listening on loopback alone.
    """
    if "authorization" in request.headers:
        return await organisation_of(request)
    if not request.app.state.keyless or request.url.hostname not in _LOOPBACK_NAMES:
        raise Refused("loopback_only", "without a key, pages are shown only on the machine itself")
    organisation = await store_of(request).read(access.first_organisation)
    if organisation is None:
        raise Refused("not_found", "there is no organisation")
    return organisation


async def session_of(request: Request, experiment_uid: str) -> Session:
    """Return the session whose token the request carries, within the experiment it names.

    Raises:
        Refused: There is no token, or none that is good for this experiment: the client refreshes it.
    """
    secret, store = _bearer(request), store_of(request)
    session = await store.read(
        lambda connection: sessions.find(connection, secret, experiment_uid, now_ms=store.clock_ms())
    )
    if session is None:
        raise Refused("unauthorized", "the experiment token is not known, has expired or was revoked")
    return session


def _bearer(request: Request) -> str:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Refused("unauthorized", "send `Authorization: Bearer <key>`")
    return secret.strip()
