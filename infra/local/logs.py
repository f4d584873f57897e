"""The services' logs: the last lines of each, and what comes after."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

__all__ = ["follow", "last_lines"]


def last_lines(path: Path, count: int) -> list[str]:
    """The newest `count` lines; none when there is no such log yet."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=count)]
    except FileNotFoundError:
        return []


def follow(
    logs: Sequence[tuple[str, Path]], *, wait: Callable[[], None] = lambda: time.sleep(0.3)
) -> Generator[tuple[str, str]]:
    """Yield (name, line) for everything written from now on, across rotations, for ever.

    `wait` is called when nothing is new.
    """
    tails = [_Tail(name, path) for name, path in logs]
    try:
        while True:
            news = [(tail.name, line) for tail in tails for line in tail.read()]
            yield from news
            if not news:
                wait()
    finally:
        for tail in tails:
            tail.close()


class _Tail:
    """One file, read from its end on; a rotated one is read out, then the new one from its start."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path
        self._rest = ""
        self._file: IO[str] | None = self._open()
        if self._file:
            self._file.seek(0, 2)

    def read(self) -> list[str]:
        text = self._file.read() if self._file else ""
        if not text and self._rotated():
            self.close()
            self._file = self._open()
            text = self._file.read() if self._file else ""
        *lines, self._rest = (self._rest + text).split("\n")
        return lines

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _open(self) -> IO[str] | None:
        try:
            return self._path.open(encoding="utf-8", errors="replace", newline="\n")
        except FileNotFoundError:
            return None

    def _rotated(self) -> bool:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        return self._file is None or _fstat(self._file) != (found.st_dev, found.st_ino)


def _fstat(file: IO[str]) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino
