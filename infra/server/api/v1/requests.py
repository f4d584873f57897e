"""What the REST routes share: bodies and queries as types, the envelope, and changes that may be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from fastapi import Request, Response

from infra.server.api.body import aside, read_body
from infra.server.api.context import principal_of, store_of
from infra.server.api.envelopes import decode_loosely
from infra.server.refusals import Refused
from infra.server.store import idempotency
from infra.server.store.idempotency import MAX_KEY_LENGTH, Repeatable
from runtime.events import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from infra.server.store.store import Store

__all__ = ["answer", "body_of", "change", "dashboard_of", "encoded", "look", "query_of"]

S = TypeVar("S")


async def body_of(request: Request, kind: type[S]) -> S:
    """Return the request's body as a `kind`.

    Raises:
        Refused: It is no JSON, does not fit, or holds what cannot be stored.
    """
    return await aside(request, lambda body: fitting(decode_loosely(body), kind))


def fitting(decoded: Any, kind: type[S]) -> S:
    """Return decoded JSON as a `kind`.

    Raises:
        Refused: It does not fit, or holds a lone surrogate or a number too large.
    """
    try:
        limits.compact(decoded)
        return msgspec.convert(decoded, kind)
    except (ValueError, RecursionError) as error:  # msgspec's ValidationError is a ValueError
        raise Refused("invalid_request", str(error)) from error


def query_of(request: Request, kind: type[S]) -> S:
    """Return the query of the request's address as a `kind`; what that does not name is passed over.

    Raises:
        Refused: It does not fit.
    """
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused("invalid_request", f"the address's query: {error}") from error


def encoded(data: Any) -> bytes:
    """Return the envelope of what went well."""
    return b'{"data":' + msgspec.json.encode(data) + b',"error":null}'


def answer(body: bytes) -> Response:
    """Return a reply of an encoded envelope."""
    return Response(body, media_type="application/json")


async def look(request: Request, work: Callable[[Connection], Any]) -> Response:
    """Answer with what `work` reads."""
    return answer(encoded(await store_of(request).read(work)))


async def change(request: Request, work: Callable[[Connection], Any]) -> Response:
    """Answer with what `work` returns once its change is durable; the same answer to the same request again.

    A request is the same when it comes under the same `idempotency-key`, which is the client's to choose.
    What is refused changes nothing and is not remembered.

    Raises:
        Refused: The first request of the key is still running, another one came under it, or `work` refused.
    """
    store = store_of(request)
    repeatable = await _repeatable(request)
    if repeatable is None:
        return answer(encoded(await store.write(work)))
    running: set[Repeatable] = request.app.state.running
    if any(_same_key(repeatable, other) for other in running):
        raise Refused(
            "idempotency_key_in_progress",
            "the first request of this idempotency-key is still running: ask again in a moment",
        )
    running.add(repeatable)
    try:
        return answer(await store.write(lambda connection: _once(connection, store, repeatable, work)))
    finally:
        running.discard(repeatable)


def dashboard_of(request: Request) -> str:
    """Return the address under which this server's pages for experiments lie."""
    return f"{request.base_url}dashboard/experiments/"


def _once(
    connection: Connection, store: Store, repeatable: Repeatable, work: Callable[[Connection], Any]
) -> bytes:
    kept = idempotency.find(connection, repeatable)
    if kept is not None:
        return kept
    reply = encoded(work(connection))
    idempotency.keep(connection, repeatable, reply, now_ms=store.clock_ms())
    return reply


async def _repeatable(request: Request) -> Repeatable | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise Refused(
            "invalid_request", f"idempotency-key must be 1 to {MAX_KEY_LENGTH} characters, got {len(key)}"
        )
    return Repeatable.of(
        principal_of(request).organisation.id,
        key,
        method=request.method,
        path=request.url.path,
        body=await read_body(request),
    )


def _same_key(one: Repeatable, other: Repeatable) -> bool:
    return (one.organisation_id, one.hash) == (other.organisation_id, other.hash)
