"""The store: an open database with its writer, as the routes use it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from anyio import to_thread

from infra.server.store.clock import now_ms
from infra.server.store.counters import Counters
from infra.server.store.database import Address, Database, migrate
from infra.server.store.ingest import Ingest
from infra.server.store.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from infra.server.store.writer import Observe

__all__ = ["Store"]

T = TypeVar("T")


class Store:
    """Reads run in threads beside one another; writes queue for the one writer.

    Raises:
        DBAPIError: The database cannot be opened or written.
        Unusable: It is not one that this version can use.
    """

    def __init__(
        self, address: Address, *, clock_ms: Callable[[], int] = now_ms, busy_timeout_ms: int = 5_000
    ) -> None:
        self.database = Database(address, busy_timeout_ms=busy_timeout_ms)
        try:
            migrate(self.database)
        except BaseException:
            self.database.close()
            raise
        self.clock_ms = clock_ms
        self.counters = Counters()
        self.ingest = Ingest(self.counters)
        self._writer = Writer(self.database, forget=self.ingest.forget)

    @property
    def queue_depth(self) -> int:
        """How many requests wait for the writer."""
        return self._writer.depth

    def watch(self, observe: Observe) -> None:
        """Tell `observe` of every commit from now on."""
        self._writer.observe = observe

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` over one consistent view of the database."""
        return await to_thread.run_sync(self.read_now, work)

    def read_now(self, work: Callable[[Connection], T]) -> T:
        """Run `work` over one consistent view, in the calling thread."""
        with self.database.read() as connection:
            return work(connection)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in the writer's next commit and return its result once that is durable."""
        return await asyncio.wrap_future(self._writer.submit(work))

    def write_now(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in the writer's next commit, from a thread that may wait."""
        return self._writer.submit(work).result()

    def close(self) -> None:
        """Commit what is queued and close the database."""
        self._writer.close()
        self.database.close()
