"""Removes in the background what was deleted, one piece a commit; other writes come in between."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from infra.server.api.background import running
from infra.server.store import removal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from infra.server.store.store import Store

__all__ = ["Remover"]

_logger = logging.getLogger(__name__)
_WAIT_S = 5.0
"""After a failure; what is deleted is out of sight, nobody waits for it."""


class Remover:
    """Lives as long as the application, and begins with what an earlier one left."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted = asyncio.Event()
        self._wanted.set()

    def wake(self) -> None:
        """Something was deleted."""
        self._wanted.set()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Remove while the application runs."""
        async with running(self._run()):
            yield

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while await self._store.write(removal.step):
                    pass
            except Exception as error:  # noqa: BLE001 - it outlives whatever one piece met
                _logger.warning("what was deleted is removed later: %s", error)
                self._wanted.set()
                await asyncio.sleep(_WAIT_S)
