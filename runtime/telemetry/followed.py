"""`FollowedFile`: one open file, read line by line while it grows, is cut short or is written anew."""

from __future__ import annotations

import os
import stat
from collections import deque
from typing import TYPE_CHECKING

from runtime.telemetry.cursor import HEAD_BYTES, HEAD_SIZES, NEAR_BYTES, Place, digest, heads_of
from runtime.telemetry.lines import Line, Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from runtime.telemetry.masking import Masker

__all__ = ["FollowedFile", "end_of", "open_file"]

_READ_BYTES = 64 * 1024


def open_file(path: Path) -> int | None:
    """Open a regular file for reading; None when there is none at `path`, or something else.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def end_of(fd: int) -> Place:
    """Return the end that an open file has now, as a place in it."""
    status = os.fstat(fd)
    offset = status.st_size
    head = os.pread(fd, min(offset, HEAD_BYTES), 0)
    return Place(
        device=status.st_dev,
        inode=status.st_ino,
        offset=offset,
        heads=heads_of(head, offset),
        near=digest(_before(fd, offset)),
    )


class FollowedFile:
    """Reads an open file, which it takes over, to wherever its end is at that time.

    Whoever asks for a line gets it masked and without its line feed. `place` is where reading may begin
    again after the lines that were handed out: the rest of what was read is forgotten then, and read again.
    Memory is bounded, however long a line is.
    """

    def __init__(self, fd: int, new_masker: Callable[[], Masker | None]) -> None:
        self._fd = fd
        status = os.fstat(fd)
        self.device, self.inode = status.st_dev, status.st_ino
        self._new_masker = new_masker
        self._lines = Lines(new_masker())
        self._ready: deque[Line] = deque()
        self._end_places: list[Place] = []
        self._ends: list[int] = []
        self._seen: tuple[int, int] | None = None
        self._head = b""
        self._back: tuple[int, bytes, int] | None = None
        """Where the last line began that had no line feed, what stands before it, and where it ended."""
        self._begin_at(0, torn=False)

    def fits(self, place: Place) -> bool:
        """Tell whether `place` is one in this file, which may have grown since."""
        return self._fits(place) is not None

    def go_to(self, place: Place) -> None:
        """Go on at `place`, which fits; before the first line."""
        offset = self._fits(place)
        assert offset is not None
        self._head = os.pread(self._fd, min(offset, HEAD_BYTES), 0)
        self._begin_at(offset, torn=place.torn or offset < place.offset)
        if place.back is not None and offset == place.offset:
            self._back = (place.back[0], _before(self._fd, place.back[0]), offset)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    # Lines

    def line(self) -> bytes | None:
        """Return the next line; None where there is no whole one yet.

        Raises:
            OSError: the file cannot be read.
        """
        while not self._ready:
            if not self._read():
                return None
        line, end = self._ready.popleft()
        self.may_stop = end is not None
        if end is not None:
            self._move_to(end)
            if self._back is not None and end > self._back[2]:
                self._back = None
        return line

    def end(self) -> Place:
        """Return the end that the file has now."""
        return end_of(self._fd)

    def end_line_at(self, place: Place) -> None:
        """Note that whoever wrote up to `place` is gone: what has no line feed there is a line all the same.

        Without effect when `place` is in another file, or read past already.
        """
        self._end_places.append(place)
        self._find_ends()

    def place(self) -> Place:
        """Return where reading may begin again; only while `may_stop` is true."""
        assert self.may_stop
        return Place(
            device=self.device,
            inode=self.inode,
            offset=self._start,
            heads=heads_of(self._head, self._start),
            near=digest(self._near),
            torn=self._torn,
            back=None if self._back is None else (self._back[0], digest(self._back[1])),
        )

    # The file

    def _begin_at(self, offset: int, *, torn: bool) -> None:
        """Read on from `offset`, whatever was read before; `torn`: the line before may lack its line feed."""
        self._offset = self._start = offset
        self._head = self._head[:offset]
        self._recent = self._near = _before(self._fd, offset)
        self._window, self._window_at = self._recent, offset - len(self._recent)
        self._torn = torn and offset > 0 and not self._recent.endswith(b"\n")
        self._lines = Lines(self._new_masker())
        self.may_stop = True
        self._find_ends()

    def _find_ends(self) -> None:
        """Find out which of the places where lines end lie before what was read."""
        ends = {place.offset for place in self._end_places if self._fits(place) == place.offset}
        self._ends = sorted(end for end in ends if self._start < end >= self._offset)
        self._seen = None

    def _read(self) -> bool:
        """Make lines of what is new; False when nothing is."""
        status = os.fstat(self._fd)
        seen = status.st_size, status.st_mtime_ns
        if seen == self._seen:
            return False
        num_bytes = min(_READ_BYTES, self._ends[0] - self._offset) if self._ends else _READ_BYTES
        window = os.pread(self._fd, len(self._recent) + num_bytes, self._offset - len(self._recent))
        if not window.startswith(self._recent):
            self._go_on_in_rewritten()
        elif len(window) > len(self._recent):
            self._take(window)
        elif self._ends:
            self._end_line()
        else:
            self._seen = seen
            return False
        return True

    def _take(self, window: bytes) -> None:
        data, at = window[len(self._recent) :], self._offset
        self._window, self._window_at = window, at - len(self._recent)
        self._recent = window[-NEAR_BYTES:]
        self._offset += len(data)
        if len(self._head) < HEAD_BYTES:
            self._head = (self._head + data)[:HEAD_BYTES]
        if self._torn and data.startswith(b"\n"):  # of the line that was taken without it
            data, at = data[1:], at + 1
            self._move_to(at)
        self._torn = False
        self._ready.extend(self._lines.feed(data, at))

    def _end_line(self) -> None:
        self._ends.pop(0)
        rest = self._lines.flush()
        if rest:
            begin, near = (self._start, self._near) if self._back is None else self._back[:2]
            self._back = (begin, near, self._offset)
            self._ready.extend((line, None) for line in rest[:-1])
            self._ready.append((rest[-1], self._offset))
            self._torn = True

    def _move_to(self, end: int) -> None:
        self._start = end
        index = end - self._window_at
        self._near = self._window[max(0, index - NEAR_BYTES) : index]

    def _go_on_in_rewritten(self) -> None:
        """Find where to go on in a file that was cut short, and perhaps written anew.

        What had no line feed is counted as the broken line that it is.
        """
        rest = self._lines.flush()
        size = os.fstat(self._fd).st_size
        known = [(self._start, self._near), *([self._back[:2]] if self._back is not None else [])]
        start = next((at for at, near in known if at <= size and _before(self._fd, at) == near), None)
        if start is None:
            start = size if size < self._start and self._begins_alike(size) else 0
        self._back = None
        self._begin_at(start, torn=True)
        self._ready.extend((line, start) for line in rest)

    def _begins_alike(self, size: int) -> bool:
        """Tell whether the file is the beginning of what it was; of few bytes only whole lines say so."""
        beginning = os.pread(self._fd, min(size, len(self._head)), 0)
        return self._head.startswith(beginning) and (size >= HEAD_SIZES[0] or beginning.endswith(b"\n"))

    def _has(self, heads: Iterable[tuple[int, str]]) -> bool:
        return all(digest(os.pread(self._fd, num_bytes, 0)) == value for num_bytes, value in heads)

    def _fits(self, place: Place) -> int | None:
        """Return where to go on from `place`; None when this is not its file any more."""
        if (place.device, place.inode) != (self.device, self.inode):
            return None
        size = os.fstat(self._fd).st_size
        known = [(place.offset, place.near)]
        if place.back is not None and place.back[0] > 0:
            known.append(place.back)
        for offset, near in known:
            heads = [head for head in place.heads if head[0] <= offset]
            if offset <= size and digest(_before(self._fd, offset)) == near and self._has(heads):
                return offset
        heads = [head for head in place.heads if head[0] <= size]
        return size if size < place.offset and heads and self._has(heads) else None


def _before(fd: int, offset: int) -> bytes:
    """Return the bytes before `offset` that tell it from another one."""
    num_bytes = min(offset, NEAR_BYTES)
    return os.pread(fd, num_bytes, offset - num_bytes)
