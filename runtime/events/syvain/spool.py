"""`Spool`: the events that Metrics has not acknowledged, in order, on disk; and the segments cut from it."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from array import array
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from runtime.events.syvain.wire import AnnotationLine, MetricLine, decode_line
from runtime.events.targets import Backlog, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Segments", "Spool"]

logger = logging.getLogger(__name__)

_FIRST_CHUNK_BYTES = 4 << 20
_LARGEST_CHUNK_BYTES = 256 << 20
_BLOCK_BYTES = 1 << 18
_INDEXED_EVERY = 256
_READ_AT_ONCE = 64


class Spool:
    """A queue of lines, numbered from 0: its positions. One thread appends, any thread reads.

    It lives in temporary files that have no name, so nothing is left when the process dies; memory holds one
    number for 256 lines. Files whose lines are all acknowledged are let go.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: deque[_Chunk] = deque()
        self._end = 0
        self._acknowledged = 0

    @property
    def end(self) -> int:
        """The position after the last line."""
        return self._end

    @property
    def acknowledged(self) -> int:
        """The position before which everything is acknowledged."""
        return self._acknowledged

    def append(self, lines: Sequence[bytes]) -> None:
        """Add lines, each with its line feed; all or none of them.

        Raises:
            OSError: the disk is full.
        """
        with self._lock:
            if not self._chunks or self._chunks[-1].full:
                # Larger and larger, so that a long outage needs few descriptors.
                room = min(_FIRST_CHUNK_BYTES << min(len(self._chunks), 16), _LARGEST_CHUNK_BYTES)
                self._chunks.append(_Chunk(self._end, room))
            self._chunks[-1].append(lines)
            self._end += len(lines)

    def read(self, position: int, *, most_lines: int, most_bytes: int) -> list[bytes]:
        """Return lines from `position` on, without line feeds: at least one where there is one."""
        lines: list[bytes] = []
        size = 0
        rest = islice(self.lines(position), most_lines)
        while size <= most_bytes and (more := list(islice(rest, _READ_AT_ONCE))):
            size += sum(map(len, more))
            lines += more
        while len(lines) > 1 and size > most_bytes:
            size -= len(lines.pop())
        return lines

    def lines(self, position: int) -> Iterator[bytes]:
        """Iterate over the lines from `position` to the end as it is now; it must not be acknowledged yet."""
        with self._lock:
            # A file that there was no room for stays empty.
            chunks = [chunk.view() for chunk in self._chunks if chunk.end > max(position, chunk.base)]
        for chunk, size in chunks:
            yield from chunk.lines(max(position, chunk.base), size)

    def acknowledge(self, position: int) -> None:
        """Note that nothing before `position` is needed any more."""
        with self._lock:
            self._acknowledged = max(self._acknowledged, position)
            while self._chunks and self._chunks[0].full and self._chunks[0].end <= self._acknowledged:
                # Its file closes with the last reader that still holds it.
                self._chunks.popleft()


class _Chunk:
    """One temporary file of lines; it closes when nobody refers to it any more."""

    def __init__(self, base: int, room: int) -> None:
        self.base = base
        self.end = base
        self._room = room
        self._size = 0
        self._offsets = array("Q")
        self._file = tempfile.TemporaryFile(prefix="slugline-events-", buffering=0)  # noqa: SIM115 (see __del__)

    def __del__(self) -> None:
        # Absent where the file could not be made.
        if file := getattr(self, "_file", None):
            file.close()

    @property
    def full(self) -> bool:
        return self._size >= self._room

    def view(self) -> tuple[_Chunk, int]:
        return self, self._size

    def append(self, lines: Sequence[bytes]) -> None:
        data = b"".join(lines)
        written = 0
        while written < len(data):
            written += os.pwrite(self._file.fileno(), data[written:], self._size + written)
        offset = self._size
        for number, line in enumerate(lines, self.end - self.base):
            if number % _INDEXED_EVERY == 0:
                self._offsets.append(offset)
            offset += len(line)
        self._size = offset
        self.end += len(lines)

    def lines(self, position: int, size: int) -> Iterator[bytes]:
        indexed, skipped = divmod(position - self.base, _INDEXED_EVERY)
        return islice(self._lines(self._offsets[indexed], size), skipped, None)

    def _lines(self, offset: int, size: int) -> Iterator[bytes]:
        rest = b""
        while offset < size:
            block = os.pread(self._file.fileno(), min(_BLOCK_BYTES, size - offset), offset)
            offset += len(block)
            *whole, rest = (rest + block).split(b"\n")
            yield from whole


class Segments:
    """The parts of a spool that checkpoints carry, each event in one of them at most.

    Their names are `<session>-<first>-<last>.jsonl`, after the numbers of their events.
    """

    def __init__(self, spool: Spool, session: str) -> None:
        self._spool = spool
        self._session = session
        self._cut = 0
        self._num_inherited = 0
        self._ends: list[tuple[str, int]] = []

    def sequence(self, position: int) -> int:
        """Return the number, in this attempt's session, of the event at `position`; 0 is its start."""
        return position - self._num_inherited + 1

    def inherit(self, segments: Iterable[Segment]) -> int:
        """Put an earlier attempt's unsent events first, and return how many lines were of no use.

        What it would have said of its own beginning and end is left out: this attempt says that.
        """
        num_bad = 0
        for segment in segments:
            kept: list[bytes] = []
            for line in segment.data.splitlines(keepends=True):
                try:
                    if isinstance(decode_line(line), MetricLine | AnnotationLine):
                        kept.append(line if line.endswith(b"\n") else line + b"\n")
                except msgspec.DecodeError as error:
                    num_bad += 1
                    logger.warning("a line of %s is no event (%s): it is left out", segment.name, error)
            try:
                self._spool.append(kept)
                end = self._spool.end
            except OSError as error:
                logger.error("%s stays for the next resume, there is no room for it: %s", segment.name, error)  # noqa: TRY400 (a full disk is no mistake of ours)
                end = sys.maxsize
            self._ends.append((segment.name, end))
        self._cut = self._num_inherited = self._spool.end
        return num_bad

    def cut(self, position: int) -> Backlog:
        """Return what is unacknowledged before `position` and in no segment yet, as a new one.

        Whoever is given it stores it, if not with this checkpoint (a save may fail) then with the next.
        """
        acknowledged = self._spool.acknowledged
        first = max(self._cut, acknowledged)
        new = None
        if first < position:
            lines = islice(self._spool.lines(first), position - first)
            name = f"{self._session}-{self.sequence(first)}-{self.sequence(position - 1)}.jsonl"
            new = Segment(name, b"".join(line + b"\n" for line in lines))
            self._ends.append((name, position))
            self._cut = position
        self._ends = [(name, end) for name, end in self._ends if end > acknowledged]
        return Backlog(new, tuple(name for name, _ in self._ends))
