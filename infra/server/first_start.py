"""The first start over an empty database: an organisation, its owner and a key, and where the key is kept."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from infra.login_files import config_home, login_paths, write_login, write_private
from infra.server.refusals import Unusable
from infra.server.store import access, people

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from infra.server.datadir import Place
    from infra.server.store.store import Store

__all__ = ["FirstKey", "ensure_key", "export_line", "log_in"]

_LOCAL = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, slots=True)
class FirstKey:
    """The key that the first start made, in its file. `made` says whether this is that start."""

    organisation_uid: str
    file: Path
    made: bool


def ensure_key(place: Place, store: Store) -> FirstKey:
    """Make an organisation, its owner and a key unless there are some.

    The key's file, which only we can read, is written before the database remembers the key, so that a crash
    in between leaves no key that nobody has.

    Raises:
        Unusable: The file cannot be written.
        StoreUnavailable: The database cannot be written.
    """

    def first(connection: Connection) -> FirstKey:
        # Asked where only one process can be: two that start at once make one organisation.
        there = access.first_organisation(connection)
        if there is not None:
            return FirstKey(there.uid, place.key_file(there.uid), made=False)
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
        file = place.key_file(organisation.uid)
        _write_key(file, key)
        return FirstKey(organisation.uid, file, made=True)

    there = store.read_now(access.first_organisation)
    if there is not None:
        return FirstKey(there.uid, place.key_file(there.uid), made=False)
    return store.write_now(first)


def export_line(key: FirstKey) -> str:
    """Return the shell's line for clients that read only the environment. The key is not in it."""
    return f'export SYVAIN_METRICS_API_KEY="$(cat {shlex.quote(str(key.file))})"'


def log_in(key: FirstKey, host: str, *, now_ms: int) -> Iterator[str]:
    """Write the key where the public clients look, and yield what was done, a line a file.

    A login to another machine is kept, and so is whatever was changed after the first start: later starts
    only correct the address of the same key.

    Raises:
        Unusable: A file cannot be written.
    """
    try:
        secret = key.file.read_text().strip()
        for path in login_paths(config_home(os.environ)):
            there = _login(path)
            same = there.get("apiKey") == secret
            if same and there.get("host") == host:
                continue
            if same or (key.made and _is_replaceable(there)):
                write_login(path, key=secret, host=host, organisation_id=key.organisation_uid, now_ms=now_ms)
                yield f"credentials in {path}"
            elif key.made:
                yield f"credentials in {path} are kept: they are those of {there['host']}"
    except OSError as error:
        raise Unusable(f"the credentials files cannot be written: {error}") from error


def _write_key(file: Path, key: str) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(file, key + "\n")
    except OSError as error:
        raise Unusable(f"the key cannot be written to {file}: {error.strerror}") from error


def _login(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_replaceable(login: dict[str, object]) -> bool:
    """Whether nothing is lost: there is none, or one of a server on this machine, which keeps its own key."""
    host = login.get("host")
    return not isinstance(host, str) or urlsplit(host).hostname in _LOCAL
