"""Request bodies: read whole, decompressed, and bounded at every point."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from infra.server.refusals import Refused

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["MAX_BODY_BYTES", "OFFER_GZIP", "read_body"]

MAX_BODY_BYTES = 128 * 2**20
"""The largest batch that a public client can make is 1,000 events of 113 KB."""

OFFER_GZIP = {"Accept-Encoding": "gzip"}
"""On a reply, tells a client that its next request body may be compressed."""


async def read_body(request: Request) -> bytes:
    """Return the request's body as it was before compression.

    Raises:
        Refused: It is too large before or after decompression, in an unknown encoding, or no gzip at all.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"identity", "gzip"}:
        raise Refused(
            "encoding_not_supported", f"content-encoding must be gzip or none, got {encoding[:40]!r}"
        )
    raw = await _received(request)
    return _gunzip(raw) if encoding == "gzip" else raw


async def _received(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        parts.append(part)
    return b"".join(parts)


def _gunzip(raw: bytes) -> bytes:
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        body = inflate.decompress(raw, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise Refused("malformed_request", f"the body is no gzip: {error}") from error
    if len(body) > MAX_BODY_BYTES:
        raise _too_large()
    if not inflate.eof or inflate.unused_data:
        raise Refused("malformed_request", "the body is not one whole gzip member")
    return body


def _too_large() -> Refused:
    return Refused(
        "body_too_large", f"a body may have at most {MAX_BODY_BYTES:,} bytes: send smaller batches"
    )
