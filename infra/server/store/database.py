"""The database: engines for the one writer and the many readers, and its migrations."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, CursorResult, Row, inspect
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from infra.server.refusals import StoreUnavailable, Unusable
from infra.server.store import postgresql, sql, sqlite
from infra.server.store.schema import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from alembic.config import Config

__all__ = [
    "Address",
    "AnyRow",
    "Database",
    "check_current",
    "is_about_rows",
    "is_empty",
    "migrate",
    "new_id",
    "reason",
    "unavailable",
]

Address: TypeAlias = "Path | str"
"""Where a database is: an SQLite file, or the URL of a PostgreSQL database."""

AnyRow: TypeAlias = "Row[*tuple[Any, ...]]"


class Database:
    """An SQLite file or a PostgreSQL database. Whatever is committed through `writes` has reached the disk.

    `busy_timeout_ms` is how long another process may hold it before it counts as unavailable.

    Raises:
        Unusable: The URL is none of PostgreSQL, or its driver is not installed.
    """

    def __init__(self, address: Address, *, busy_timeout_ms: int = 5_000) -> None:
        self.address = address
        self._name = uuid.uuid4().hex
        self.writes, self.reads = (
            postgresql.engines(address, busy_timeout_ms=busy_timeout_ms)
            if isinstance(address, str)
            else sqlite.engines(address, busy_timeout_ms=busy_timeout_ms)
        )

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the database.

        Raises:
            StoreUnavailable: It cannot be read now.
        """
        try:
            with self.reads.connect() as connection:
                yield connection
        except (DBAPIError, PoolTimeout) as error:
            if is_about_rows(error):
                raise
            raise unavailable(error) from error

    def changed_hands(self, connection: Connection) -> bool:
        """Whether somebody else committed since this process last did: what it remembers may be wrong.

        To be asked first in every transaction that writes; it says who writes.
        """
        last = sql.scalar(connection, "SELECT name FROM last_writer WHERE id = 1")
        if last == self._name:
            return False
        statement = (
            "INSERT INTO last_writer (name, id) VALUES (?, 1)"
            if last is None
            else "UPDATE last_writer SET name = ? WHERE id = ?"
        )
        sql.run(connection, statement, (self._name,) if last is None else (self._name, 1))
        return True

    def size_bytes(self, connection: Connection) -> int:
        """Return how much the database takes on disk, what is not yet folded into it included."""
        if isinstance(self.address, str):
            return int(sql.scalar(connection, "SELECT pg_database_size(current_database())"))
        files = (self.address, self.address.with_name(f"{self.address.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Close every connection."""
        self.reads.dispose()
        self.writes.dispose()


def migrate(database: Database) -> tuple[str | None, str]:
    """Bring the schema to this version, from empty (None) or an earlier one; return both versions.

    Raises:
        DBAPIError: The database cannot be written, or a file holds something that is no database.
        Unusable: A later version made the database, or text does not survive in it.
    """
    from alembic import command
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = _alembic()
    script = ScriptDirectory.from_config(config)
    if isinstance(database.address, Path):
        _make_private(database.address)
    with database.writes.connect() as connection:
        _enforce_foreign_keys(connection, on=False)
        try:
            with connection.begin():
                before = MigrationContext.configure(connection).get_current_revision()
                _check_known(before, script)
                if connection.dialect.name == "postgresql":
                    postgresql.check(connection)
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                if connection.dialect.name == "postgresql":
                    postgresql.order_by_bytes(connection, metadata.tables)
                _check_foreign_keys(connection)
        finally:
            _enforce_foreign_keys(connection, on=True)
    head = script.get_current_head()
    assert head is not None
    return before, head


def _make_private(file: Path) -> None:
    """Make a database's file, if there is none, for its owner alone to read, as SQLite then makes the others.

    Its directory may have been made by somebody else, for everybody to look into. A file that is there is not
    opened: closing it again would take the locks of every connection of this process. Where the name is a
    link, SQLite makes what it leads to.
    """
    with suppress(OSError):  # SQLite says better what is wrong
        os.close(os.open(os.path.realpath(file), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def check_current(connection: Connection) -> None:
    """Refuse a database whose tables are not of this version: only a start or a migration changes them.

    Raises:
        Unusable: They are of another version, or there are none.
    """
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    found = MigrationContext.configure(connection).get_current_revision()
    script = ScriptDirectory.from_config(_alembic())
    _check_known(found, script)
    if found != script.get_current_head():
        of = "has no tables" if found is None else f"has the tables of version {found}"
        raise Unusable(
            f"the database {of}: start the server there first, or run syvain-metrics server migrate"
        )


def is_empty(connection: Connection) -> bool:
    """Whether a database has no tables."""
    return not inspect(connection).get_table_names()


def unavailable(error: DBAPIError | PoolTimeout) -> StoreUnavailable:
    """Return what a client is told of a database error: the database's words, without statement or values."""
    if isinstance(error, PoolTimeout):
        return StoreUnavailable("every connection is busy")
    return StoreUnavailable(reason(error))


def reason(error: DBAPIError) -> str:
    """Return the database's own words in one line."""
    lines = str(error.orig).strip().splitlines()
    return lines[0].strip() if lines else type(error.orig).__name__


def is_about_rows(error: BaseException) -> bool:
    """Whether an error is about what a statement says, and the database itself is well."""
    about = isinstance(error, IntegrityError | DataError | ProgrammingError)
    return about and not getattr(error, "connection_invalidated", False)


def new_id(result: CursorResult[*tuple[Any, ...]]) -> int:
    """Return the id of the row that an insert made."""
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def _alembic() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def _check_known(revision: str | None, script: Any) -> None:
    known = {one.revision for one in script.walk_revisions()}
    if revision is not None and revision not in known:
        raise Unusable(
            "the database is of a later version of the server, or of another program: its schema is"
            f" {revision}, the latest known here {script.get_current_head()}. Start that one or give another"
        )


def _enforce_foreign_keys(connection: Connection, *, on: bool) -> None:
    """Let SQLite rebuild a table that others point at; only outside of a transaction can it be told to."""
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        driver.execute(f"PRAGMA foreign_keys={'ON' if on else 'OFF'}")


def _check_foreign_keys(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        assert not broken, f"a migration lost rows that others point at: {broken[:3]}"
