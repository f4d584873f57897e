"""What is done to a place beside serving it: its tables brought up to date, backups made and restored."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from infra.server.datadir import DataDir
from infra.server.refusals import Unusable
from infra.server.store import backup as backups
from infra.server.store.database import Database, reason
from infra.server.store.database import migrate as migrate_database

if TYPE_CHECKING:
    from pathlib import Path

    from infra.server.datadir import Place

__all__ = ["backup", "migrate", "restore"]


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
