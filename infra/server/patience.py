"""How long a client may take to say what it wants and to read the answer, so that slow ones hold nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from infra.server.refusals import Refused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Patience", "PatientProtocol"]

_HEADERS_S = 15.0
_SILENCE_S = 30.0
_GRACE_S = 60.0
_MIN_BYTES_PER_S = 8192


class Patience:
    """Around an application: a body must keep coming.

    One that is silent for `silence_s`, or after `grace_s` came at less than 8 KiB a second, is answered with
    408.
    """

    def __init__(self, app: ASGIApp, *, silence_s: float = _SILENCE_S, grace_s: float = _GRACE_S) -> None:
        self._app = app
        self._silence_s = silence_s
        self._grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._app(scope, self._bounded(receive) if scope["type"] == "http" else receive, send)

    def _bounded(self, receive: Receive) -> Receive:
        now_s = asyncio.get_running_loop().time
        latest_s = now_s() + self._grace_s
        whole = False

        async def come_on() -> Message:
            nonlocal latest_s, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(min(now_s() + self._silence_s, latest_s)):
                    message = await receive()
            except TimeoutError as error:
                raise Refused("request_timeout", "the body did not come in time") from error
            latest_s += len(message.get("body", b"")) / _MIN_BYTES_PER_S
            whole = not message.get("more_body", False)
            return message

        return come_on


class PatientProtocol(AutoHTTPProtocol):  # type: ignore[valid-type, misc]  # one of two classes
    """uvicorn's protocol, whose connections close when a request's headers are not whole in 15 seconds.

    The same holds for a connection on which nothing was ever asked, and for one whose answers nobody reads
    for 30 seconds.
    """

    headers_s = _HEADERS_S
    unread_s = _SILENCE_S
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait no longer once a request is there; for the rest of a next one, from its first byte."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing."""
        self._stop_waiting()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait until what was written is read. To close would wait for that too, and for ever."""
        super().pause_writing()
        self._is_read()
        self._unread = self.loop.call_later(self.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Somebody reads."""
        super().resume_writing()
        self._is_read()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.headers_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if not self.transport.is_closing():
            self.transport.close()
