"""What a command prints, on its way into the log: masked, whatever dies in between."""

from __future__ import annotations

import codecs
import contextlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runtime.telemetry.masking import Masker

__all__ = ["Output"]

READ_BYTES = 1 << 20


class Output:
    """Copies what a command writes to a file of its own into the log that everybody may read.

    The command writes to a file and not to a pipe, so that it can still say that it saves when the flow
    process is gone. Nobody but its user may read that file, as nothing in it is masked, and it is removed as
    soon as all of it is copied. A copy that a flow process did not finish is made again by the next one on
    the host, from where the file's name says that it began in the log.
    """

    def __init__(self, folder: Path, log: Path, *, masker: Masker) -> None:
        """Begin, at the end of what the log holds already."""
        start = log.stat().st_size if log.exists() else 0
        self.path = folder / f"{log.stem}.output-{start}"
        os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        self._copy = _Copy(self.path, log, start, masker)

    @classmethod
    def finish_left(cls, folder: Path, new_masker: Callable[[], Masker]) -> None:
        """Copy what flow processes that died have left, and remove it."""
        for path in sorted(folder.glob("attempt-*.output-*")):
            stem, _, start = path.name.rpartition(".output-")
            if start.isdecimal():
                _Copy(path, folder / f"{stem}.log", int(start), new_masker()).finish()

    def pump(self) -> None:
        """Copy what the command has written since the last time."""
        self._copy.pump()

    def say(self, text: str) -> None:
        """Put a line of ours between the command's, or after them: telemetry may be delivered late.

        It waits while what the command wrote last may be the beginning of a secret: it would cut that in two.
        """
        self._copy.say(text.encode(errors="backslashreplace") + b"\n")

    def finish(self) -> None:
        """Copy the rest, now that nobody writes any more, and remove the command's file."""
        self._copy.finish()


class _Copy:
    """The log from `start` on is the file at `path`, masked and valid UTF-8."""

    def __init__(self, path: Path, log: Path, start: int, masker: Masker) -> None:
        self._path, self._log, self._masker = path, log, masker
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0
        self._finished = False
        self._ours = b""
        self._lock = threading.Lock()
        log.touch()
        if log.stat().st_size > start:
            os.truncate(log, start)

    def pump(self) -> None:
        with self._lock:
            self._read()
            self._put_ours()

    def finish(self) -> None:
        with self._lock:
            if self._finished:
                return
            self._read()
            self._write(self._masker.flush(), final=True)
            self._append(self._log)
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            self._finished = True

    def say(self, line: bytes) -> None:
        with self._lock:
            self._ours += line
            if self._finished:
                self._append(self._log)
            else:
                self._read()
                self._put_ours()

    def _put_ours(self) -> None:
        if not self._finished and self._masker.at_rest:
            self._append(self._path)

    def _append(self, path: Path) -> None:
        if not self._ours:
            return
        with path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            glue = b"" if size == 0 or file.read(1) == b"\n" else b"\n"
            file.write(glue + self._ours)
        self._ours = b""

    def _read(self) -> None:
        if self._finished:
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while block := file.read(READ_BYTES):
                self._offset += len(block)
                self._write(self._masker.feed(block))

    def _write(self, masked: bytes, *, final: bool = False) -> None:
        text = self._decoder.decode(masked, final)
        if text:
            with self._log.open("ab") as log:
                log.write(text.encode())
