"""One attempt's log on its way into the run's record: any bytes, whoever began to send them."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PushedLog", "TakesLogs"]

READ_BYTES = 256 << 10
"""What is sent at once becomes at most three times as much text: the server takes 1 MiB."""


class TakesLogs(Protocol):
    """What of a run's record a log needs. It exists so that any bytes can be tried in memory."""

    def log_offset(self, number: int) -> int:
        """Return how many bytes of the text of attempt `number` are stored."""
        ...

    def append_log(self, number: int, offset: int, text: str) -> int:
        """Store `text` if it comes at `offset` bytes; return where what is stored ends."""
        ...


class PushedLog:
    """The log of attempt `number` at `path`, and how much of it the server has.

    The server counts bytes of text, and what is no UTF-8 has become more or fewer of them: so where to go on
    in the file is found by reading it again, not by its offset.
    """

    def __init__(self, number: int, path: Path) -> None:
        self._number, self._path = number, path
        self._stored: int | None = None
        """How many bytes of text the server has; unset: it has not been asked."""
        self._read = self._passed = 0
        """How many bytes of the file were read; how many of its text lie before `_text`."""
        self._text = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def is_behind(self) -> bool:
        """Say whether there is more than the server has. The beginning of a letter waits for its end."""
        return bool(self._text) or self._size() > self._read

    def push(self, server: TakesLogs) -> None:
        """Send what the server has not. Raises what `server` raises."""
        if not self.is_behind():
            return
        if self._stored is None:
            self._go_on_from(server.log_offset(self._number))
        while self._take():
            assert self._stored is not None
            end = self._stored + len(self._text)
            stored = server.append_log(self._number, self._stored, self._text.decode())
            if stored == end:
                self._stored = self._passed = end
                self._text = b""
            elif stored == self._stored:
                return  # it takes nothing now
            else:
                self._go_on_from(stored)

    def _go_on_from(self, stored: int) -> None:
        self._stored, self._read, self._passed, self._text = stored, 0, 0, b""
        self._decoder.reset()

    def _take(self) -> bool:
        """Have text that comes where the server's ends; False: there is none yet."""
        assert self._stored is not None
        while not self._text and self._size() > self._read:
            with self._path.open("rb") as file:
                file.seek(self._read)
                block = file.read(READ_BYTES)
            self._read += len(block)
            text = self._decoder.decode(block).encode()
            known = min(len(text), self._stored - self._passed)
            self._passed += known
            # Of another file, a letter may be cut through: what is left of it is nothing.
            self._text = text[known:].decode(errors="ignore").encode()
        return bool(self._text)

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0
