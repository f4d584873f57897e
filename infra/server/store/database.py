"""The database file: engines for the one writer and the many readers, and its migrations."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, CursorResult, Engine, Row, create_engine, event
from sqlalchemy.exc import DBAPIError

from infra.server.refusals import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AnyRow", "Database", "migrate", "new_id", "unavailable"]

AnyRow: TypeAlias = "Row[*tuple[Any, ...]]"


class Database:
    """One SQLite file in WAL mode. Whatever is committed through `writes` has reached the disk.

    `busy_timeout_ms` is how long another process may hold the file before it counts as unavailable.
    """

    def __init__(self, path: Path, *, busy_timeout_ms: int = 5_000) -> None:
        self.path = path
        busy = {"busy_timeout": str(busy_timeout_ms)}
        self.writes = _engine(path, begin="BEGIN IMMEDIATE", pragmas=busy | _WRITER_PRAGMAS, pool_size=1)
        self.reads = _engine(path, begin="BEGIN", pragmas=busy | _READER_PRAGMAS, pool_size=8)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the database.

        Raises:
            StoreUnavailable: The file cannot be read now.
        """
        try:
            with self.reads.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise unavailable(error) from error

    def close(self) -> None:
        """Close every connection."""
        self.reads.dispose()
        self.writes.dispose()


def migrate(database: Database) -> None:
    """Bring the schema to this version, from empty or from any earlier one.

    Raises:
        DBAPIError: The file cannot be written, or holds something that is no database.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    with database.writes.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def unavailable(error: DBAPIError) -> StoreUnavailable:
    """Return what a client is told of a database error: the database's words, without statement or values."""
    return StoreUnavailable(str(error.orig))


def new_id(result: CursorResult[*tuple[Any, ...]]) -> int:
    """Return the id of the row that an insert made."""
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


_WRITER_PRAGMAS = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "foreign_keys": "ON",
    "cache_size": "-65536",
    "journal_size_limit": str(64 * 2**20),
}
_READER_PRAGMAS = {
    "query_only": "ON",
    "cache_size": "-8192",
}


def _engine(path: Path, *, begin: str, pragmas: dict[str, str], pool_size: int) -> Engine:
    engine = create_engine(f"sqlite:///{path}", pool_size=pool_size, max_overflow=64, pool_timeout=30)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we begin transactions ourselves, and say of which kind
        for name, value in pragmas.items():
            connection.execute(f"PRAGMA {name}={value}")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
