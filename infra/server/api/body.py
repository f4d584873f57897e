"""Request bodies: read whole before a route runs, decompressed, and bounded at every point."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import to_thread
from fastapi.routing import APIRoute
from starlette.requests import Request

from infra.server.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from starlette.responses import Response

__all__ = [
    "LARGE_BYTES",
    "MAX_BODY_BYTES",
    "MAX_UNPACKED_BYTES",
    "OFFER_GZIP",
    "BodyBudget",
    "BoundedRoute",
    "aside",
    "read_body",
]

T = TypeVar("T")
MAX_BODY_BYTES = 128 * 2**20
"""The largest batch that a public client can make is 1,000 events of 113 KB."""

MAX_UNPACKED_BYTES = 256 * 2**20
"""What a body's JSON may take once it is decoded: three bytes of `[],` become a list of ninety-six."""

OFFER_GZIP = {"Accept-Encoding": "gzip"}
"""On a reply, tells a client that its next request body may be compressed."""

_MAX_BODIES_BYTES = 512 * 2**20
_PIECE_BYTES = 2**20
_UNPACKED_BYTES = {b"{": 240, b"[": 64, b",": 32}
"""What an object, a list and a place in one take at least; in a text they count as well."""
LARGE_BYTES = 5 * 2**18
"""What is larger than our own sender's batches is not worked on in one go, while everybody else waits.

What is smaller cannot unpack to much either, and is not looked at for it: that costs a third of decoding it.
"""


class BodyBudget:
    """What the bodies of all requests in progress may take together. Lives as long as the application."""

    def __init__(self, *, max_bytes: int = _MAX_BODIES_BYTES) -> None:
        self._free_bytes = max_bytes
        self.turn = asyncio.Lock()

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Give what takes bytes of it; they are free again at the end.

        Raises:
            Refused: By what is given: it is spent, and the client comes again later.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self._free_bytes:
                raise Refused("unavailable", "too many large requests at once", retry_after_s=1)
            self._free_bytes -= size
            taken += size

        try:
            yield take
        finally:
            self._free_bytes += taken


class BoundedRoute(APIRoute):
    """A route whose request bodies are at most `max_body_bytes`, before compression and after.

    Set it on a subclass for routes that need less.
    """

    max_body_bytes = MAX_BODY_BYTES

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which is given requests whose body was read."""
        inner = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            await self.admit(request)
            budget: BodyBudget = request.app.state.body_budget
            with budget.share() as take:
                body = await _decoded(request, self.max_body_bytes, take)
                return await inner(_Read(request, body))

        return bounded

    async def admit(self, request: Request) -> None:
        """Refuse a request before anything of its body is read."""


async def read_body(request: Request) -> bytes:
    """Return the body of a request to a `BoundedRoute`, as it was before compression."""
    return await request.body()


async def aside(request: Request, decode: Callable[[bytes], T]) -> T:
    """Return what a request's body is decoded to. A large one is decoded beside the loop, one at a time.

    Raises:
        Refused: `decode` refused.
    """
    body = await read_body(request)
    if len(body) <= LARGE_BYTES:
        return decode(body)
    budget: BodyBudget = request.app.state.body_budget
    async with budget.turn:
        return await to_thread.run_sync(decode, body)


class _Read(Request):
    """A request whose body is there already."""

    def __init__(self, request: Request, body: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._body = body


async def _decoded(request: Request, limit: int, take: Callable[[int], None]) -> bytes:
    """Return the body before compression; `take` is told of every byte that is kept.

    Raises:
        Refused: It is too large before or after decompression or would be once it is decoded, in an unknown
            encoding, or no gzip at all.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"identity", "gzip"}:
        raise Refused(
            "encoding_not_supported", f"content-encoding must be gzip or none, got {encoding[:40]!r}"
        )
    if _announced(request) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = looked_at = unpacked = 0
    async for part in _inflated(request) if encoding == "gzip" else request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        take(len(part))
        parts.append(part)
        if size > LARGE_BYTES:
            unpacked += sum(map(_unpacked, parts[looked_at:]))
            looked_at = len(parts)
        if unpacked > MAX_UNPACKED_BYTES:
            raise Refused("body_too_large", "the body holds too many lists, objects and values: send fewer")
    return b"".join(parts)


def _unpacked(part: bytes) -> int:
    return sum(part.count(sign) * weight for sign, weight in _UNPACKED_BYTES.items())


def _announced(request: Request) -> int:
    length = request.headers.get("content-length", "0")
    return int(length) if length.isdecimal() else 0


async def _inflated(request: Request) -> AsyncIterator[bytes]:
    """Yield what a gzip body holds in small pieces, so that a bomb is refused long before it is unpacked.

    Others get their turn between the pieces.
    """
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    async for part in request.stream():
        rest = part
        while rest:
            yield _piece(inflate, rest)
            rest = inflate.unconsumed_tail
            await asyncio.sleep(0)
        if inflate.unused_data:
            raise _no_member()
    while piece := _piece(inflate, b""):
        yield piece
        await asyncio.sleep(0)
    if not inflate.eof:
        raise _no_member()


def _piece(inflate: Any, rest: bytes) -> bytes:
    try:
        return bytes(inflate.decompress(rest, _PIECE_BYTES))
    except zlib.error as error:
        raise Refused("malformed_request", f"the body is no gzip: {error}") from error


def _no_member() -> Refused:
    return Refused("malformed_request", "the body is not one whole gzip member")


def _too_large(limit: int) -> Refused:
    return Refused("body_too_large", f"a body may have at most {limit:,} bytes here: send smaller ones")
