"""The one writer: a thread that commits what many requests hand in, together.

A commit costs one flush of the disk however much it holds, so whatever waits while one commit runs shares the
next. A request is answered only after the commit that holds it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sqlalchemy.exc import DBAPIError

from infra.server.refusals import StoreUnavailable
from infra.server.store.database import is_about_rows, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from infra.server.store.database import Database

__all__ = ["Observe", "Writer"]

T = TypeVar("T")


class Observe(Protocol):
    """Is told of each commit, in the writer's thread."""

    def __call__(self, seconds: float, units: int, /, *, failed: bool) -> None:
        """A commit took so long and held so many units; nothing of one that failed was applied."""


_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Unit(Generic[T]):
    """One request's work and where its result goes."""

    work: Callable[[Connection], T]
    future: Future[T] = field(default_factory=Future)
    outcome: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.outcome)


class Writer:
    """Applies units of work, each whole or not at all.

    `forget` is called in the writer's thread when a whole commit failed, and when another process has
    written: what was remembered of the database may then be wrong. `max_units` bounds one commit, so that the
    first of many waits no longer.
    """

    def __init__(self, database: Database, *, forget: Callable[[], None], max_units: int = 256) -> None:
        self._database = database
        self._forget = forget
        self._max_units = max_units
        self._queue: queue.SimpleQueue[_Unit[Any] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self.observe: Observe | None = None
        self._thread = threading.Thread(target=self._run, name="metrics-writer", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """How many units wait."""
        return self._queue.qsize()

    def submit(self, work: Callable[[Connection], T]) -> Future[T]:
        """Queue one unit; its future holds the result once it is durable.

        The future raises what `work` raised, or `StoreUnavailable` when the database could not take it. One
        that is cancelled before its turn (a request that is given up) is not applied.
        """
        unit = _Unit(work)
        with self._closing:
            if self._closed:
                unit.future.set_exception(StoreUnavailable("the server is stopping"))
            else:
                self._queue.put(unit)
        return unit.future

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        with self._closing:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            units, last = self._gather()
            if units:
                self._commit(units)
                for unit in units:
                    unit.settle()
            if last:
                return

    def _gather(self) -> tuple[list[_Unit[Any]], bool]:
        """Wait for one unit, then take whatever else waits, but what nobody waits for any more."""
        units: list[_Unit[Any]] = []
        unit = self._queue.get()
        while unit is not None:
            # From here on it cannot be cancelled: a result for a cancelled future would end this thread.
            if unit.future.set_running_or_notify_cancel():
                units.append(unit)
            if len(units) == self._max_units:
                return units, False
            try:
                unit = self._queue.get_nowait()
            except queue.Empty:
                return units, False
        return units, True

    def _commit(self, units: list[_Unit[Any]]) -> None:
        started_s, failed = time.perf_counter(), False
        try:
            with self._database.writes.connect() as connection, connection.begin():
                if self._database.changed_hands(connection):
                    self._forget()
                for unit in units:
                    self._apply(connection, unit)
        except Exception as error:  # noqa: BLE001 - the writer outlives whatever one commit met
            failed = True
            self._forget()
            failure = unavailable(error) if isinstance(error, DBAPIError) else StoreUnavailable(str(error))
            _logger.warning("a commit failed, nothing of it was applied: %s", failure)
            for unit in units:
                unit.outcome, unit.error = None, failure
        if self.observe is not None:
            try:
                self.observe(time.perf_counter() - started_s, len(units), failed=failed)
            except Exception:  # whoever watches must not end the writing
                _logger.exception("a commit could not be observed")

    def _apply(self, connection: Connection, unit: _Unit[Any]) -> None:
        """Run one unit so that its failure undoes it alone.

        A database error that is not about the unit's own rows (disk full, I/O) ends the whole commit: SQLite
        may already have rolled the transaction back, and what came after would run outside of one.
        """
        savepoint = connection.begin_nested()
        try:
            unit.outcome = unit.work(connection)
            savepoint.commit()
        except Exception as error:
            if isinstance(error, DBAPIError) and not is_about_rows(error):
                raise
            savepoint.rollback()
            unit.error = error
