"""Long answers: made in threads, a piece at a time, so many at once, and let go of when nobody reads on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from anyio import to_thread
from starlette.responses import StreamingResponse

from infra.server.api.errors import error_response
from infra.server.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from fastapi import Request
    from starlette.types import Receive, Scope, Send

__all__ = ["Streamed", "Turns"]

_MAX_STREAMS = 32
_PATIENCE_S = 35.0
"""Longer than an answer that nobody reads is held."""


class Turns:
    """How many long answers are made at once: what is streamed holds chunks until its client has read them.

    Lives as long as the application. One more waits for `patience_s` and is then told to come again.
    """

    def __init__(self, max_streams: int = _MAX_STREAMS, *, patience_s: float = _PATIENCE_S) -> None:
        self._free = asyncio.Semaphore(max_streams)
        self._patience_s = patience_s

    async def __aenter__(self) -> None:
        """Take one's turn for as long as the context."""
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        """Let the next one begin."""
        self.give_back()

    async def take(self) -> None:
        """Return once it is one's turn, which ends with `give_back`.

        Raises:
            Refused: It was not in time.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise Refused(
                "unavailable",
                "too many long answers are made at once: ask again in a moment",
                retry_after_s=2,
            ) from error

    def give_back(self) -> None:
        """Let the next one begin."""
        self._free.release()


class Streamed(StreamingResponse):
    """What a generator yields, which is closed when the answer ends, whoever ends it.

    A client that goes away would otherwise leave it, with all it holds, to the garbage collector.
    """

    def __init__(self, request: Request, lines: Generator[bytes], *, media_type: str) -> None:
        super().__init__(_in_threads(lines), media_type=media_type)
        self._lines = lines
        self._turns: Turns = request.app.state.streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer when it is one's turn."""
        try:
            await self._turns.take()
        except Refused as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._turns.give_back()
            self._lines.close()  # no thread is in it: one that was, was waited for


async def _in_threads(lines: Generator[bytes]) -> AsyncIterator[bytes]:
    while (line := await to_thread.run_sync(next, lines, None)) is not None:
        yield line
