"""What is done to a place beside serving it: its tables brought up to date, backups made and restored."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from infra.server.datadir import DataDir
from infra.server.refusals import Unusable
from infra.server.store import access
from infra.server.store import backup as backups
from infra.server.store.clock import now_ms
from infra.server.store.database import Database, check_current, reason
from infra.server.store.database import migrate as migrate_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from infra.server.datadir import Place
    from infra.server.store.access import Organisation

__all__ = ["add_organisation", "backup", "compact", "migrate", "organisations", "restore"]

_MAX_NAME = 200


def migrate(place: Place) -> tuple[str | None, str]:
    """Bring a place's tables up to date, as every start does; return their version before and after.

    Unset before: there were none.

    Raises:
        Unusable: A server holds the place, or its database cannot be written or is of a later version.
    """
    with place.hold(), closing(Database(place.address)) as database:
        try:
            return migrate_database(database)
        except DBAPIError as error:
            raise Unusable(f"the database {place.name} cannot be used: {reason(error)}") from error


def backup(place: Place, file: Path) -> int:
    """Write everything that was acknowledged so far into one file and return its size in bytes.

    A server that runs goes on. An older file of that name is replaced in one step. Keys are in it as hashes
    only, and the data directory's `key` is not.

    Raises:
        Unusable: The place or the file cannot be used. The older file is then as it was.
    """
    if isinstance(place, DataDir):
        return backups.save_file(place.database, file.absolute())
    return backups.dump_database(str(place.address), file.absolute())


def restore(place: Place, file: Path) -> None:
    """Fill an empty place from a backup, whole or not at all. The keys of then are good again.

    Raises:
        Unusable: The place is not empty or a server holds it, or the file is no backup for it.
    """
    if not isinstance(place, DataDir):
        backups.load_database(file.absolute(), str(place.address))
        return
    with place.hold():
        there = sorted(entry.name for entry in place.path.iterdir() if entry.name != "lock")
        if there:
            raise Unusable(f"{place.path} is not empty, it has {there[0]}: restore into another directory")
        backups.restore_file(file.absolute(), place.database)


def compact(place: Place) -> tuple[int, int]:
    """Give back the room of what was deleted; return the bytes that the database took before and takes now.

    Raises:
        Unusable: A server holds the place, there is no room for a second file, or it is PostgreSQL's to do.
    """
    if not isinstance(place, DataDir):
        raise Unusable("PostgreSQL uses the room of what was deleted by itself (autovacuum): nothing to do")
    with place.hold():
        return backups.compact_file(place.database)


def add_organisation(place: Place, name: str) -> tuple[Organisation, str]:
    """Make one more organisation; return it and an owner's key of it, which cannot be read again.

    A server that runs goes on.

    Raises:
        Unusable: The name is taken or none, or the place has no database of this version.
    """
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise Unusable(f"an organisation's name has 1 to {_MAX_NAME} printable characters, got {name[:50]!r}")
    with _writing(place) as connection:
        if name in [one.name for one in access.all_organisations(connection)]:
            raise Unusable(f"there is an organisation named {name!r} already: take another name")
        organisation = access.create_organisation(connection, name, now_ms=now_ms())
        _, key = access.create_key(connection, organisation.id, "first", role="owner", now_ms=now_ms())
        return organisation, key


def organisations(place: Place) -> list[Organisation]:
    """Return a place's organisations, the first start's first. A server that runs goes on.

    Raises:
        Unusable: The place has no database of this version.
    """
    with _writing(place) as connection:
        return access.all_organisations(connection)


@contextmanager
def _writing(place: Place) -> Iterator[Connection]:
    """One transaction beside a server that may run, over tables of this version."""
    if isinstance(place, DataDir) and not place.database.exists():
        raise Unusable(f"there is no database at {place.database}: start the server there first")
    with closing(Database(place.address)) as database:
        try:
            with database.writes.connect() as connection, connection.begin():
                check_current(connection)
                database.changed_hands(connection)
                yield connection
        except DBAPIError as error:
            raise Unusable(f"the database {place.name} cannot be used: {reason(error)}") from error
