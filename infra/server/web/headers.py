"""The headers that tell browsers what not to do with our answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["PAGE_POLICY", "SafeHeaders"]

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""What a page may load, and from where: everything comes from us, nothing is inline."""

_SAFE = {
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _SAFE.items()]
_PRIVATE = (b"cache-control", b"no-store")


class SafeHeaders:
    """Around an application: gives every answer the headers that it does not have already.

    An answer may be kept by nobody unless it says so itself: it may be somebody's alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ())]
                there = {name.lower() for name, _ in headers}
                headers += [header for header in _HEADERS if header[0] not in there]
                if not there & {b"cache-control", b"etag"}:
                    headers.append(_PRIVATE)
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, safely)
