"""A store in a local directory: durable at return, compare-and-swap by a lock and a rename."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from runtime.checkpoints.store import Conflict, Missing, Object, Truncated
from runtime.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["LocalStore"]

HALF_WRITTEN = "tmp"
LOCK = ".lock"
LOCK_WITHIN_S = 20
DIRECT_BYTES = 1 << 20  # below that, the cache is no burden


class LocalStore:
    """A `Store` in the directory `root`, which is made by the first write.

    A file is written under `tmp/` and renamed, so that no final name ever holds a part of one; what a
    kill leaves in `tmp/` is listed like any other object, and swept with the rest.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)
        self._thread_lock = threading.Lock()

    def get(self, key: str) -> tuple[bytes, str]:
        """See `Store.get`."""
        with self._translated("read", key):
            data = (self.root / key).read_bytes()
        return data, blake3(data).hexdigest()

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """See `Store.put`."""
        with self._translated("write", key):
            half = self._write_aside(data)
            with self._locked():  # a delete that removes the empty folder would come between
                self._rename(half, self.root / key)
            _fsync_folder((self.root / key).parent)

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        """See `Store.put_if`."""
        with self._translated("write", key), self._locked():
            try:
                held = blake3((self.root / key).read_bytes()).hexdigest()
            except FileNotFoundError:
                held = None
            if held != etag:
                raise Conflict(f"{self.root / key} was written by somebody else")
            self._rename(self._write_aside(data), self.root / key)
            _fsync_folder((self.root / key).parent)
        return blake3(data).hexdigest()

    def read_into(self, key: str, buffer: memoryview) -> None:
        """See `Store.read_into`."""
        with self._translated("read", key), (self.root / key).open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            done = 0
            while size_bytes == len(buffer) and done < len(buffer):
                count = file.readinto(buffer[done:])
                if not count:
                    break
                done += count
        if size_bytes != len(buffer) or done < len(buffer):
            raise Truncated(f"{key} holds {size_bytes} bytes, expected {len(buffer)}")

    def list(self, prefix: str = "") -> Iterator[Object]:
        """See `Store.list`."""
        start = self.root / prefix.rpartition("/")[0]
        with self._translated("list", prefix):
            for folder, _, names in os.walk(start, onerror=self._walk_error):
                for name in names:
                    path = Path(folder, name)
                    key = path.relative_to(self.root).as_posix()
                    if not key.startswith(prefix) or key == LOCK:
                        continue
                    with suppress(FileNotFoundError):  # deleted by somebody since the listing began
                        stat = path.stat()
                        yield Object(key, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Store.delete`."""
        folders = set()
        for key in keys:
            path = self.root / key
            with self._translated("delete", key):
                path.unlink(missing_ok=True)
            folders.add(path.parent)
        for folder in folders - {self.root, self.root / HALF_WRITTEN}:
            with self._locked(), suppress(OSError):  # not empty, or gone
                folder.rmdir()

    def _write_aside(self, data: bytes | bytearray | memoryview) -> Path:
        half = self.root / HALF_WRITTEN / uuid.uuid4().hex
        half.parent.mkdir(parents=True, exist_ok=True)
        try:
            with half.open("xb", buffering=0) as file:
                left = memoryview(data).cast("B")
                if len(left) >= DIRECT_BYTES:
                    left = left[_write_past_cache(file.fileno(), left) :]
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
        except BaseException:
            half.unlink(missing_ok=True)
            raise
        return half

    def _rename(self, half: Path, path: Path) -> None:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            _fsync_folder(path.parent.parent)
        half.rename(path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with self._thread_lock, (self.root / LOCK).open("ab") as file:
            deadline = time.monotonic() + LOCK_WITHIN_S
            while not _try_lock(
                file.fileno()
            ):  # the kernel frees it when its holder dies, not when it sleeps
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"{self.root / LOCK} is held by another process for {LOCK_WITHIN_S} s; "
                        "continue or end the stopped process that has it open"
                    )
                time.sleep(0.005)
            try:
                yield
            finally:
                # Closing would not do: a loader's worker that was forked meanwhile holds the same open file.
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)

    @contextmanager
    def _translated(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            if verb == "read":  # also where a checkpoint's folder has been replaced by a file
                raise Missing(f"{self.root / key}") from error
            raise self._unavailable(verb, key, error) from error
        except OSError as error:
            raise self._unavailable(verb, key, error) from error

    def _unavailable(self, verb: str, key: str, error: OSError) -> Unavailable:
        remedy = "free some space" if error.errno in _FULL else "check the directory and who may write to it"
        return Unavailable(f"cannot {verb} {self.root / key}: {error.strerror}; {remedy}")

    def _walk_error(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def _write_past_cache(descriptor: int, data: memoryview) -> int:
    """Write whole pages without the page cache, and return how many bytes that were.

    Of 1 GiB that costs 0.05 s of CPU time instead of 0.3 s or more, and leaves the cache to training. A file
    system that cannot, and memory that does not begin at a page, write nothing here.
    """
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    pages, done = len(data) - len(data) % mmap.PAGESIZE, 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        while done < pages:
            done += os.write(descriptor, data[done:pages])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return done


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fsync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # what was put there was deleted, and the folder with it
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
