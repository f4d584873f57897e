"""Backups: one file with everything that was acknowledged before it began, made while the server runs."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from infra.server.refusals import StoreUnavailable, Unusable
from infra.server.store.database import Database, is_empty

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["compact_file", "dump_database", "load_database", "restore_file", "save_file"]

_SQLITE, _POSTGRESQL = b"SQLite format 3\0", b"PGDMP"


def save_file(database: Path, file: Path) -> int:
    """Copy an SQLite database into one file and return its size in bytes.

    The copy is of one moment, and writers go on meanwhile. It is checked, and takes the place of an older
    file of that name in one step.

    Raises:
        Unusable: The database or the file cannot be used, or what was written is not sound.
    """
    if not database.exists():
        raise Unusable(f"there is no database at {database}")
    if file.exists() and file.samefile(database):
        raise Unusable(f"{file} is the database itself: name another file")
    with _replacing(file) as temporary, _sqlite_errors(f"the backup of {database} failed"):
        _copy(database, temporary)
        with closing(sqlite3.connect(temporary)) as copy:
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, whatever the original is
            _check_sound(copy, database)
    return file.stat().st_size


def compact_file(database: Path) -> tuple[int, int]:
    """Write an SQLite database anew without the room of what was deleted; return its bytes before and after.

    Nobody else may have it open. The new file is checked, and takes the old one's place in one step.

    Raises:
        Unusable: The database cannot be used, there is no room for a second one, or it is not sound.
    """
    if not database.exists():
        raise Unusable(f"there is no database at {database}")
    before = database.stat().st_size
    with _replacing(database) as temporary, _sqlite_errors(f"{database} cannot be compacted"):
        with closing(sqlite3.connect(database, timeout=5, isolation_level=None)) as old:
            # What a server that was killed left beside the file must not stay there beside the new one.
            (busy, _, _) = old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise Unusable(f"somebody reads {database}, perhaps a backup: try again once it is done")
            old.execute("VACUUM INTO ?", (str(temporary),))
        with closing(sqlite3.connect(temporary)) as copy:
            _check_sound(copy, database)
    return before, database.stat().st_size


def restore_file(file: Path, database: Path) -> None:
    """Put a backup where a server finds its database; nothing may be there.

    Raises:
        Unusable: The backup is none of SQLite or not sound, or the database cannot be written.
    """
    _check_kind(file, _SQLITE)
    with _replacing(database) as temporary, _sqlite_errors(f"the backup {file} cannot be restored"):
        _copy(file, temporary)
        with closing(sqlite3.connect(temporary)) as copy:
            _check_sound(copy, file)
            tables = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"alembic_version", "organisations"} <= tables:
                raise Unusable(f"{file} is no backup of a Metrics server: it has no tables of one")


def dump_database(url: str, file: Path) -> int:
    """Have pg_dump write a PostgreSQL database into one file and return its size in bytes.

    Raises:
        Unusable: There is no pg_dump, or it fails.
    """
    with _replacing(file) as temporary:
        options = ["--format=custom", "--no-owner", "--no-privileges", f"--file={temporary}"]
        _run("pg_dump", url, [*options, "--lock-wait-timeout=60s"], about="backs up")
        _run("pg_restore", None, ["--list", str(temporary)], about="reads the backup of")
    return file.stat().st_size


def load_database(file: Path, url: str) -> None:
    """Have pg_restore fill an empty PostgreSQL database from a file, whole or not at all.

    Raises:
        Unusable: The file is none of pg_dump, the database is not empty, or there is no pg_restore.
    """
    _check_kind(file, _POSTGRESQL)
    database = Database(url)
    try:
        with database.read() as connection:
            if not is_empty(connection):
                raise Unusable("the database is not empty: restore into a new one")
    except StoreUnavailable as error:
        raise Unusable(error.message) from error
    finally:
        database.close()
    options = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]
    _run("pg_restore", url, [*options, str(file)], about="restores")


def _copy(source: Path, target: Path) -> None:
    # All pages in one step: they are of one moment, and a write in between does not start it again.
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as read,
        closing(sqlite3.connect(target)) as written,
    ):
        read.backup(written, pages=-1)


def _check_sound(copy: sqlite3.Connection, of: Path) -> None:
    (found,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise Unusable(f"the copy of {of} is not sound: {found}")


def _check_kind(file: Path, wanted: bytes) -> None:
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_SQLITE))
    except OSError as error:
        raise Unusable(f"the backup {file} cannot be read: {error.strerror}") from error
    if start.startswith(wanted):
        return
    if start.startswith(_POSTGRESQL):
        raise Unusable(f"{file} is a backup of PostgreSQL: restore it into a database (--database)")
    if start.startswith(_SQLITE):
        raise Unusable(f"{file} is a backup of a data directory: restore it into one (--data)")
    raise Unusable(f"{file} is no backup")


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """A file to write that only we can read; once it is on the disk it takes the name in one step.

    Raises:
        Unusable: It cannot be written, or what has the name is no file: a pipe or a device would be lost.
    """
    if file.exists() and not file.is_file():
        raise Unusable(f"{file} is no file, and nothing else is replaced: give another name")
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        yield temporary
        _flush(temporary)
        temporary.replace(file)
        _flush(file.parent)
    except OSError as error:
        raise Unusable(f"{file} cannot be written: {error.strerror or error}") from error
    finally:
        for left in (temporary, *(temporary.with_name(temporary.name + end) for end in _BESIDE)):
            with suppress(OSError):  # what cannot be written cannot be cleared away either
                left.unlink()


_BESIDE = ("-journal", "-wal", "-shm")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _sqlite_errors(what: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Unusable(f"{what}: {error}") from error


def _run(program: str, url: str | None, options: Sequence[str], *, about: str) -> None:
    """Run one of PostgreSQL's programs; a password goes by the environment, where `ps` does not show it."""
    found = shutil.which(program)
    if found is None:
        raise Unusable(
            f"{program} is not installed, and it {about} PostgreSQL: install the client programs of the"
            f" database's version, or run where they are: {program} {' '.join(options)}"
        )
    target, password = ([], {}) if url is None else _without_password(url)
    result = subprocess.run(
        [found, *target, *options],
        env=os.environ | password,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        lines = [line.removeprefix(f"{program}: ").strip() for line in result.stderr.splitlines()]
        raise Unusable(f"{program} failed: {'; '.join(lines[:2]) or f'status {result.returncode}'}")


def _without_password(url: str) -> tuple[list[str], dict[str, str]]:
    """Return the options that name a database, and the environment that opens it."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    from infra.server.store import postgresql

    plain = postgresql.parse(url).set(drivername="postgresql").render_as_string(hide_password=False)
    parameters = conninfo_to_dict(plain)
    password = parameters.pop("password", None)
    return (
        ["--no-password", f"--dbname={make_conninfo('', **parameters)}"],
        {} if password is None else {"PGPASSWORD": str(password)},
    )
