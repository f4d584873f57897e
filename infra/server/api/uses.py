"""When each key was last used, remembered in memory and stored once a minute: not a write a request."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, or_, update

from infra.server.api.background import running
from infra.server.refusals import Refused
from infra.server.store.schema import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from infra.server.store.store import Store

__all__ = ["Uses"]

_INTERVAL_S = 60.0
_logger = logging.getLogger(__name__)


class Uses:
    """The last use of every key since it was last stored. Lives as long as the application.

    A server that is killed forgets the last minute; nothing else depends on it.
    """

    def __init__(self, store: Store, *, interval_s: float = _INTERVAL_S) -> None:
        self._store = store
        self._interval_s = interval_s
        self._pending: dict[int, int] = {}

    def note(self, key_id: int) -> None:
        """A key was used now."""
        self._pending[key_id] = self._store.clock_ms()

    def latest(self, key_id: int, stored_ms: int | None) -> int | None:
        """Return a key's last use, given what is stored of it; None before the first."""
        return self._pending.get(key_id, stored_ms)

    async def flush(self) -> None:
        """Store what is pending, in one write; nothing pending is no write."""
        taken, self._pending = self._pending, {}
        if not taken:
            return
        try:
            await self._store.write(lambda connection: _store(connection, taken))
        except BaseException as error:
            self._pending = taken | self._pending
            if not isinstance(error, Refused):  # a flush that the end of the application cuts off, say
                raise
            _logger.warning("the last use of %d keys is stored later: %s", len(taken), error)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Flush at every interval, and once more at the end."""
        try:
            async with running(self._run()):
                yield
        finally:
            await self.flush()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.flush()


def _store(connection: Connection, uses: Mapping[int, int]) -> None:
    later = or_(keys.c.last_used_ms.is_(None), keys.c.last_used_ms < bindparam("used_ms"))
    connection.execute(
        update(keys).where(keys.c.id == bindparam("key_id"), later).values(last_used_ms=bindparam("used_ms")),
        [{"key_id": key_id, "used_ms": used_ms} for key_id, used_ms in uses.items()],
    )
