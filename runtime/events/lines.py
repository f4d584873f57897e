"""Targets that take the stream's lines as they are: a file (`JsonlTarget`), a pipe (`PipeTarget`)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING

import orjson

from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runtime.events.kinds import Event

__all__ = ["JsonlTarget", "PipeTarget", "mend"]

logger = logging.getLogger(__name__)

_BEGINNING = b'{"ts_ms":'
_PIPE_ROOM = 16 << 20


class JsonlTarget:
    """Appends to one file, every hand-over in one write. Opened, and mended, with the first of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"jsonl:{path}"
        self.dropped: Counter[str] = Counter()
        self._fd: int | None = None

    def check(self) -> None:
        """Refuse a file that cannot be appended to, or that holds something else than events."""
        parent = self.path.parent
        if not parent.is_dir():
            raise Rejected(f"--metrics {self.name}: {parent} is no directory: make it first")
        if self.path.is_dir():
            raise Rejected(f"--metrics {self.name}: it is a directory, and a file is wanted: add a file name")
        exists = self.path.exists()
        if not os.access(self.path if exists else parent, os.R_OK | os.W_OK):
            raise Rejected(f"--metrics {self.name}: it is not ours to write: choose another path")
        if exists:
            _check_events(self.path)

    def write(self, events: Sequence[Event], lines: Sequence[bytes]) -> None:  # noqa: ARG002 (a Target's signature)
        """Append the lines in one write; a write that fails half-way is taken back."""
        if self._fd is not None and os.fstat(self._fd).st_nlink == 0:
            logger.warning("%s was removed, and its events with it: a new one is begun", self.path)
            self.close(0)
        if self._fd is None:
            self._fd = self._open()
        _append(self._fd, b"".join(lines))

    def sync(self) -> None:
        """Return when the file is durable."""
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 (a Target's signature)
        """Make the file durable and let go of it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _require_events(fd)
            mended = mend(fd)
            if mended:
                logger.warning("%s: %s", self.path, mended)
            _sync_directory(self.path.parent)
        except BaseException:
            os.close(fd)
            raise
        return fd


class PipeTarget:
    """Writes to a pipe or a terminal from a thread of its own, since its reader may stop reading.

    It takes over `fd`. A reader that is 16 MiB behind has given up: the target is then dropped.
    """

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self.dropped: Counter[str] = Counter()
        self._fd = fd
        self._changed = threading.Condition()
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._waiting_bytes = 0
        self._error: OSError | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Accept: the descriptor is open, and what its reader will do nobody knows."""

    def write(self, events: Sequence[Event], lines: Sequence[bytes]) -> None:
        """Leave the lines to the thread, which writes each hand-over at once."""
        data = b"".join(lines)
        with self._changed:
            if self._error is None and self._waiting_bytes + len(data) > _PIPE_ROOM:
                self._fail(OSError(errno.EAGAIN, f"its reader is {_PIPE_ROOM >> 20} MiB behind"))
            if self._error is not None:
                raise self._error
            self._waiting.append((data, len(events)))
            self._waiting_bytes += len(data)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"events {self.name}", daemon=True)
            self._thread.start()

    def sync(self) -> None:
        """Do nothing: a pipe has no durability."""

    def close(self, timeout_s: float) -> None:
        """Wait until everything is written, at most `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._changed:
            if self._waiting and self._error is None:
                self._fail(OSError(errno.EAGAIN, f"its reader took nothing for {timeout_s:g} s"))
            if self._error is not None:
                raise self._error
        os.close(self._fd)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing or self._error)
                if not self._waiting:
                    return
                data = self._waiting[0][0]
            try:
                _write_whole(self._fd, data)
            except OSError as error:
                with self._changed:
                    self._fail(error)
                return
            with self._changed:
                if self._error is not None:
                    return
                self._waiting.popleft()
                self._waiting_bytes -= len(data)

    def _fail(self, error: OSError) -> None:
        self._error = error
        self.dropped["not written"] += sum(num_events for _, num_events in self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0


def mend(fd: int) -> str | None:
    """Cut a torn last line off a file of events and return what was done; unset when nothing was torn.

    A last line that lacks nothing but its line feed is whole: it gets the line feed.
    """
    size = os.fstat(fd).st_size
    tail = _tail(fd, size)
    if not tail:
        return None
    if _is_object(tail):
        _append(fd, b"\n")
        done = "the last line lacked its line feed, which was added"
    else:
        os.ftruncate(fd, size - len(tail))
        done = f"cut a torn last line of {len(tail)} bytes off its end"
    os.fsync(fd)
    return done


def _check_events(path: Path) -> None:
    """Refuse what is no file of events: mending it could cut off somebody's last line."""
    try:
        with path.open("rb") as file:
            foreign = _foreign(file.fileno())
    except OSError as error:
        raise Rejected(f"--metrics jsonl:{path} cannot be read: {error.strerror}") from error
    if foreign:
        raise Rejected(
            f"--metrics jsonl:{path}: the file holds something else than events"
            f" (found {foreign!r}): choose another path"
        )


def _require_events(fd: int) -> None:
    """Raise `OSError` for a file that somebody made since the check, such as a run record of that name."""
    if foreign := _foreign(fd):
        raise OSError(f"it holds something else than events (found {foreign!r})")


def _foreign(fd: int) -> bytes:
    """Return the beginning of what is no event in a file; empty where its first and last line are some."""
    return (_no_event(os.pread(fd, 20, 0)) or _no_event(_tail(fd, os.fstat(fd).st_size)))[:20]


def _no_event(part: bytes) -> bytes:
    """Return `part` where no event begins like it; after a power failure the end of a file may be zeros."""
    return b"" if _BEGINNING.startswith(part[: len(_BEGINNING)].rstrip(b"\0")) else part


def _tail(fd: int, size: int) -> bytes:
    """Return what follows the last line feed; empty when the file ends in one."""
    parts: list[bytes] = []
    while size > 0:
        start = max(0, size - 65_536)
        block = os.pread(fd, size - start, start)
        feed = block.rfind(b"\n")
        parts.append(block[feed + 1 :])
        if feed >= 0:
            break
        size = start
    return b"".join(reversed(parts))


def _is_object(line: bytes) -> bool:
    with contextlib.suppress(orjson.JSONDecodeError):
        return isinstance(orjson.loads(line), dict)
    return False


def _append(fd: int, data: bytes) -> None:
    written = 0
    try:
        while written < len(data):
            written += os.write(fd, data[written:])
    except OSError:
        if written:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, os.fstat(fd).st_size - written)
        raise


def _write_whole(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # who shares our standard output may have made it one that does not wait
            select.select([], [fd], [])


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
