"""Where a server keeps what it knows: a data directory of its own, or a database that others share."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from infra.login_files import config_home
from infra.server.refusals import Unusable
from infra.server.store import postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from infra.server.store.database import Address

__all__ = ["DataDir", "Place", "RemoteDatabase", "Unusable", "place"]


class Place(Protocol):
    """Why it exists: commands take either of the two, and only a directory has a lock and a file of its own.

    `name` is how people know the database; no password is in it.
    """

    @property
    def address(self) -> Address:
        """What the store opens."""

    @property
    def name(self) -> str:
        """What errors call it."""

    def hold(self) -> AbstractContextManager[None]:
        """Take it for this process, for as long as the context lasts.

        Raises:
            Unusable: It cannot be written, or another process holds it.
        """

    def key_file(self, organisation_uid: str) -> Path:
        """Return where the first start writes the key of the organisation that it makes."""


class DataDir:
    """A directory with an SQLite file, the key and a lock. Nothing is touched before `hold()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address: Address = path / "metrics.sqlite3"
        self.database = path / "metrics.sqlite3"
        self.name = str(self.database)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Make the directory if need be and lock it."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a")
        except OSError as error:
            raise Unusable(f"the data directory {self.path} cannot be written: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Unusable(
                    f"the data directory {self.path} is in use by another server: stop it first"
                ) from error
            yield

    def key_file(self, organisation_uid: str) -> Path:  # noqa: ARG002 - one organisation is first in a directory
        """Return the file of the first key."""
        return self.path / "key"


class RemoteDatabase:
    """A PostgreSQL database by URL. Any number of servers may use it at once.

    Raises:
        Unusable: The URL is none of PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        self.address: Address = url
        self.name = postgresql.parse(url).set(drivername="postgresql").render_as_string(hide_password=True)

    def hold(self) -> AbstractContextManager[None]:
        """Take nothing: whoever writes holds a lock in the database for as long as it writes."""
        return nullcontext()

    def key_file(self, organisation_uid: str) -> Path:
        """Return a file of its own beside the clients' logins: there is no directory of the database's."""
        return config_home(os.environ) / "syvain-metrics" / f"{organisation_uid}.key"


def place(*, data: Path | None, database: str | None) -> Place:
    """Return what a command was pointed at; exactly one of the two is given.

    Raises:
        Unusable: Both are given or none, or the URL is none of PostgreSQL.
    """
    if (data is None) == (database is None):
        given = "neither" if data is None else "both"
        raise Unusable(f"give either a data directory (--data) or a database (--database), got {given}")
    return RemoteDatabase(database) if database is not None else DataDir(_absolute(data))


def _absolute(path: Path | None) -> Path:
    assert path is not None
    return path.absolute()
