"""The data directory: everything that the stack on one machine keeps, in one place."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import category

import msgspec

from infra.local.errors import StackError
from infra.local.ports import Ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["BUCKET", "DataDirectory", "Secrets", "default_data_directory"]

BUCKET = "slugline"
"""The bucket in the stack's S3 that checkpoints go to."""

# A unix socket's path ends at 108 bytes with its closing zero. The supervisor binds its own with its process
# number behind the name (at most 4194304), before it takes the right one.
MAX_PATH_BYTES = 107 - len("/supervisor.sock.4194304")

# What begins something else in an SQLite database's address or in the supervisor's configuration. Control
# characters and bytes that are no text are unfit too.
UNFIT = "%?"


class Secrets(msgspec.Struct, frozen=True):
    """The keys of this data directory's S3; hidden in `repr`."""

    s3_access_key: str
    s3_secret_key: str

    def __repr__(self) -> str:
        return "Secrets(...)"


class _Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What `up` was told, kept so that the other verbs find the stack again."""

    version: int = 1
    ports: Ports


def default_data_directory(environ: Mapping[str, str]) -> Path:
    """`$SLUGLINE_DATA`, else `slugline` in `$XDG_DATA_HOME`, else `~/.local/share/slugline`.

    Raises:
        StackError: when it would be in the home directory, and there is none.
    """
    if chosen := environ.get("SLUGLINE_DATA"):
        return Path(chosen)
    base = environ.get("XDG_DATA_HOME")
    try:
        return (Path(base) if base else Path.home() / ".local" / "share") / "slugline"
    except RuntimeError as error:
        raise StackError("this user has no home directory: choose a data directory with --data") from error


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Paths in one data directory. Nothing is made before `create`."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> DataDirectory:
        """Name the directory; it need not exist yet.

        Raises:
            StackError: when the supervisor's socket would not fit, or the path is not one to use.
        """
        try:
            path = path.expanduser().resolve()
        except RuntimeError as error:  # `~` of nobody, or links in a circle
            reason = str(error).rstrip(".")
            raise StackError(
                f"the data directory cannot be found: {path}: {reason}: choose another with --data"
            ) from error
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise StackError(
                f"the data directory's path is too long for a unix socket: {path}: "
                f"choose one of at most {MAX_PATH_BYTES} bytes with --data"
            )
        unfit = [letter for letter in str(path) if letter in UNFIT or category(letter) in {"Cc", "Cs"}]
        if unfit:
            raise StackError(
                f"the data directory's path must not hold {unfit[0]!r}: {str(path)!r}: "
                "Prefect and the supervisor read it as more than a letter: choose another with --data"
            )
        if path.exists() and not path.is_dir():
            raise StackError(f"the data directory is not a directory: {path}: choose another with --data")
        return cls(path)

    @property
    def socket(self) -> Path:
        """Where the supervisor answers."""
        return self.path / "supervisor.sock"

    @property
    def supervisor_config(self) -> Path:
        """What the supervisor was started with."""
        return self.path / "supervisor.conf"

    @property
    def identities(self) -> Path:
        """Who may use the S3 server."""
        return self.path / "s3.json"

    @property
    def metrics(self) -> Path:
        """The Metrics server's own directory; it keeps its key in `key`."""
        return self.path / "metrics"

    @property
    def runs(self) -> Path:
        """Where runs keep their event files and logs; what counts of them is at their locations too."""
        return self.path / "runs"

    def log(self, service: str) -> Path:
        """The file that a service's output goes to."""
        return self.path / "logs" / f"{service}.log"

    def create(self) -> None:
        """Make the directory, readable by this user alone, with its keys; what is there stays."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("logs", "prefect", "s3", "metrics", "runs"):
                (self.path / name).mkdir(mode=0o700, exist_ok=True)
            with self.locked():
                self._create_keys()
        except OSError as error:
            raise StackError(
                f"the data directory cannot be written: {self.path}: {error.strerror}: "
                "choose another with --data"
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for one `up` or `down` at a time; a second one waits."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _create_keys(self) -> None:
        if (self.path / "secrets.json").exists():
            return
        keys = Secrets(secrets.token_hex(10).upper(), secrets.token_urlsafe(30))
        identity = {
            "name": "slugline",
            "credentials": [{"accessKey": keys.s3_access_key, "secretKey": keys.s3_secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        _write_private(self.identities, msgspec.json.encode({"identities": [identity]}))
        _write_private(self.path / "secrets.json", msgspec.json.encode(keys))

    def secrets(self) -> Secrets:
        """The keys that `create` made.

        Raises:
            StackError: when the file was changed into something else.
        """
        path = self.path / "secrets.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Secrets)
        except msgspec.MsgspecError as error:
            raise StackError(
                f"{path} does not hold the stack's keys: {error}: remove it, and slugline up makes new ones"
            ) from error

    def metrics_key(self) -> str | None:
        """The key that the Metrics server made on its first start; unset before that."""
        try:
            return (self.metrics / "key").read_text().strip() or None
        except FileNotFoundError:
            return None

    def ports(self) -> Ports:
        """The ports that `up` was last told; the defaults before that.

        Raises:
            StackError: when the file was changed into something else.
        """
        try:
            return msgspec.json.decode((self.path / "stack.json").read_bytes(), type=_Chosen).ports
        except FileNotFoundError:
            return Ports()
        except msgspec.MsgspecError as error:
            raise StackError(
                f"{self.path / 'stack.json'} does not hold the ports: {error}: correct it or remove it"
            ) from error

    def remember(self, ports: Ports) -> None:
        """Keep the ports for every later command."""
        _write_private(self.path / "stack.json", msgspec.json.encode(_Chosen(ports=ports)))


def _write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user may read, whole or not at all."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)  # a power failure must not leave an empty file under the name
    draft.replace(path)
