"""Whether the process answers, and whether it can do its work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from sqlalchemy import insert, select, update

from infra.server.api.body import BoundedRoute
from infra.server.api.described import Operation, describe
from infra.server.refusals import StoreUnavailable
from infra.server.store.schema import readiness

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection

    from infra.server.store.store import Store

__all__ = ["Readiness", "router"]

_KEPT_S = 1.0
_PATIENCE_S = 12.0
"""Longer than the commit before ours and then ours may each wait for a lock, 5 s: so that is what is said."""
_BODY = b'{"status":"ok"}'


class _ProbeRoute(BoundedRoute):
    max_body_bytes = 1024


router = APIRouter(route_class=_ProbeRoute, tags=["health"])


class Fine(msgspec.Struct):
    """It is well."""

    status: Literal["ok"]


class Readiness:
    """Finds out whether the database can be read and written: once a second, however often it is asked.

    Lives as long as the application. `patience_s` is how long the database may take to answer.
    """

    def __init__(self, store: Store, *, kept_s: float = _KEPT_S, patience_s: float = _PATIENCE_S) -> None:
        self._store = store
        self._kept_s = kept_s
        self._patience_s = patience_s
        self._asking = asyncio.Lock()
        self._asked_s: float | None = None
        self._found: StoreUnavailable | None = None

    async def check(self) -> None:
        """Return when the database was written, or was a moment ago.

        Raises:
            StoreUnavailable: It cannot be read or written; why.
        """
        async with self._asking:
            now_s = asyncio.get_running_loop().time()
            if self._asked_s is None or now_s - self._asked_s >= self._kept_s:
                self._found = await self._ask()
                self._asked_s = asyncio.get_running_loop().time()
        if self._found is not None:
            raise self._found

    async def _ask(self) -> StoreUnavailable | None:
        try:
            await self._in_time(lambda: self._store.read(_read), "cannot be read")
            await self._in_time(lambda: self._store.write(self._write), "cannot be written")
        except StoreUnavailable as unavailable:
            return unavailable
        return None

    async def _in_time(self, ask: Callable[[], Awaitable[None]], what: str) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await ask()
        except TimeoutError as error:
            raise StoreUnavailable(f"it {what} within {self._patience_s:g} s") from error

    def _write(self, connection: Connection) -> None:
        now_ms = self._store.clock_ms()
        changed = connection.execute(update(readiness).where(readiness.c.id == 1).values(checked_ms=now_ms))
        if not changed.rowcount:
            connection.execute(insert(readiness).values(id=1, checked_ms=now_ms))


@router.get("/healthz")
@describe(Operation(reply=Fine))
async def healthz() -> Response:
    """Say that the process answers; the database is not asked."""
    return Response(_BODY, media_type="application/json")


@router.get("/readyz")
@describe(Operation(reply=Fine, codes=("unavailable",)))
async def readyz(request: Request) -> Response:
    """Say that the database can be read and written, or why not."""
    found: Readiness = request.app.state.readiness
    await found.check()
    return Response(_BODY, media_type="application/json")


def _read(connection: Connection) -> None:
    connection.execute(select(readiness.c.id)).first()
