"""Waiting for news: requests that are answered when something happens to a run, or in time."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

from infra.server.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fastapi import Request

__all__ = ["MAX_WAIT_S", "News", "news_of"]

T = TypeVar("T")
MAX_WAIT_S = 25
"""Less than proxies and clients are used to wait for an answer."""
_MAX_WAITING = 512
_LOOK_AGAIN_S = 1.0
"""Another server process over the same database tells nobody here."""


class News:
    """Who waits for what. Lives as long as the application, in its event loop."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._num_waiting = 0
        self._closed = False

    def tell(self, run_id: int) -> None:
        """Something happened to a run, and is durable."""
        for event in self._waiting.get(run_id, ()):
            event.set()

    def close(self) -> None:
        """Nobody waits any longer: what there is is the answer."""
        self._closed = True
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def wait(
        self,
        run_id: int,
        look: Callable[[], Awaitable[T]],
        *,
        until: Callable[[T], bool],
        wait_s: float,
        is_gone: Callable[[], Awaitable[bool]],
    ) -> T:
        """Return what `look` finds once it is what is waited for, or when `wait_s` are over.

        `is_gone` says whether whoever asked went away, which is noticed within a second: the room is somebody
        else's then.

        Raises:
            Refused: Too many wait already.
        """
        deadline_s = asyncio.get_running_loop().time() + wait_s
        with self._event(run_id, wait_s) as event:
            while True:
                event.clear()  # before looking: what happens meanwhile is looked at again
                found = await look()
                left_s = deadline_s - asyncio.get_running_loop().time()
                if until(found) or left_s <= 0 or self._closed:
                    return found
                await _either(event, min(left_s, _LOOK_AGAIN_S))
                if await is_gone():
                    return found

    @contextmanager
    def _event(self, run_id: int, wait_s: float) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        if wait_s <= 0:
            yield event
            return
        if self._num_waiting >= _MAX_WAITING:
            raise Refused(
                "unavailable",
                "too many requests wait for news at once: ask again in a moment",
                retry_after_s=2,
            )
        self._num_waiting += 1
        self._waiting.setdefault(run_id, set()).add(event)
        try:
            yield event
        finally:
            self._num_waiting -= 1
            self._waiting[run_id].discard(event)
            if not self._waiting[run_id]:
                del self._waiting[run_id]


async def _either(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass


def news_of(request: Request) -> News:
    """Return the application's."""
    return cast("News", request.app.state.news)
