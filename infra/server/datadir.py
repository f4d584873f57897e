"""The data directory: one server at a time, the database, and the first key."""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING

from infra.server.refusals import Unusable
from infra.server.store import access, people

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from infra.server.store.store import Store

__all__ = ["DataDir", "Unusable", "write_credentials"]

_CLIENTS = ("syvain-metrics", "o41-metrics")


class DataDir:
    """A directory that this process holds until it ends.

    Raises:
        Unusable: It cannot be written, or another server holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key_file = path / "key"
        self.database = path / "metrics.sqlite3"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (path / "lock").open("a")
        except OSError as error:
            raise Unusable(f"the data directory {path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Unusable(f"the data directory {path} is in use by another server: stop it first") from error

    def ensure_key(self, store: Store) -> None:
        """On the first start, make an organisation and a key, and write the key to a file only we can read.

        The file is written before the database remembers its key, so that a crash in between leaves no key
        that nobody has.
        """
        if store.read_now(access.first_organisation) is not None:
            return

        def first(connection: Connection) -> None:
            now_ms = store.clock_ms()
            organisation = access.create_organisation(connection, "local", now_ms=now_ms)
            people.add(
                connection,
                organisation.id,
                email="owner@localhost",
                name="Owner",
                role="owner",
                password_hash=None,
                now_ms=now_ms,
            )
            _, key = access.create_key(connection, organisation.id, "first", role="owner", now_ms=now_ms)
            _write_private(self.key_file, key + "\n")

        store.write_now(first)

    def organisation_uid(self, store: Store) -> str:
        """Return the id of the organisation that the first start made."""
        organisation = store.read_now(access.first_organisation)
        assert organisation is not None
        return organisation.uid


def write_credentials(
    config_home: Path, *, key: str, host: str, organisation_id: str, now_ms: int
) -> list[Path]:
    """Write the files in which public clients look for a key, and return them."""
    content = {"apiKey": key, "host": host, "orgId": organisation_id, "loginAt": now_ms}
    written = [config_home / client / "auth.json" for client in _CLIENTS]
    for path in written:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(path, json.dumps(content, indent=2) + "\n")
    return written


def _write_private(path: Path, text: str) -> None:
    """Replace a file in one step; at no moment can anybody else read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
