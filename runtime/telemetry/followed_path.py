"""`FollowedPath`: what is written under one name, whichever file that is."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from runtime.telemetry.cursor import MAX_PAST, Cursor
from runtime.telemetry.followed import FollowedFile, end_of, open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from runtime.telemetry.cursor import Place
    from runtime.telemetry.masking import Masker

__all__ = ["FollowedPath", "end_at"]

_MAX_FILES = 8
_MAX_ENTRIES = 10_000

logger = logging.getLogger(__name__)


def end_at(path: Path) -> list[Place]:
    """Return the end that the file at `path` has now; empty when there is none."""
    fd = open_file(path)
    if fd is None:
        return []
    try:
        return [end_of(fd)]
    finally:
        os.close(fd)


class FollowedPath:
    """Reads the lines of the file at `path`, and of those that stood there before, each to its end.

    A file that was renamed is read on for as long as somebody writes to it, and `linger_s` seconds more; one
    that was replaced as well. It begins where `cursor` says; a renamed file is then looked for in its folder.
    """

    def __init__(
        self,
        path: Path,
        cursor: Cursor,
        *,
        new_masker: Callable[[], Masker | None] = lambda: None,
        linger_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._new_masker = new_masker
        self._linger_s = linger_s
        self._clock = clock
        self._past = list(cursor.past)
        self._files: list[FollowedFile] = []
        self._grew_at: dict[FollowedFile, float] = {}
        self._ends: list[Place] = []
        for place in cursor.files:
            self._find(place)
        self._look()

    def lines(self) -> Iterator[bytes]:
        """Yield every line that is whole by now, oldest file first; to be left only while `may_stop` is true.

        Raises:
            OSError: a file is there and cannot be read.
        """
        self._look()
        for file in list(self._files):
            yield from self._lines_of(file)
            if file is not self._files[-1] and self._is_over(file):
                file.end_line_at(file.end())
                yield from self._lines_of(file)
                self._leave(file)

    @property
    def may_stop(self) -> bool:
        """Whether reading may begin again after the line that came last."""
        return all(file.may_stop for file in self._files)

    def ends(self) -> list[Place]:
        """Return the ends that the files have now."""
        self._look()
        return [file.end() for file in self._files]

    def end_lines_at(self, places: Iterable[Place]) -> None:
        """Note that whoever wrote up to these places is gone: what has no line feed there is a line."""
        self._ends = list(places)
        for file in self._files:
            for place in self._ends:
                file.end_line_at(place)

    def cursor(self) -> Cursor:
        """Return where reading goes on after the lines that were yielded."""
        return Cursor(tuple(file.place() for file in self._files), tuple(self._past))

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()
        self._files.clear()

    def _lines_of(self, file: FollowedFile) -> Iterator[bytes]:
        while (line := file.line()) is not None:
            self._grew_at[file] = self._clock()
            yield line

    def _is_over(self, file: FollowedFile) -> bool:
        too_many = len(self._files) > _MAX_FILES
        return too_many or self._clock() - self._grew_at[file] >= self._linger_s

    def _leave(self, file: FollowedFile) -> None:
        self._past = [*self._past, file.place()][-MAX_PAST:]
        self._files.remove(file)
        del self._grew_at[file]
        file.close()

    # Finding files

    def _look(self) -> None:
        """Open what stands at the path now, unless it is open; it becomes the last of the files."""
        try:
            status = self._path.stat()
        except OSError:  # renamed, and nobody has made a new one yet; or its folder cannot be reached now
            return
        if self._files and (self._files[-1].device, self._files[-1].inode) == (status.st_dev, status.st_ino):
            return
        fd = open_file(self._path)
        if fd is not None:
            self._add(FollowedFile(fd, self._new_masker))

    def _add(self, file: FollowedFile) -> None:
        for known in self._files:
            if (known.device, known.inode) == (file.device, file.inode):  # it has its old name again
                file.close()
                self._files.remove(known)
                self._files.append(known)
                return
        place = next((place for place in reversed(self._past) if file.fits(place)), None)
        if place is not None:
            file.go_to(place)
            self._past.remove(place)
        for end in self._ends:
            file.end_line_at(end)
        self._files.append(file)
        self._grew_at[file] = self._clock()

    def _find(self, place: Place) -> None:
        """Open the file of `place` wherever it is in its folder; what is gone, or another, is past."""
        self._past = [*self._past, place][-MAX_PAST:]  # where `_add` finds it
        try:
            for candidate in (self._path, *self._with_inode(place.inode)):
                fd = open_file(candidate)
                if fd is None:
                    continue
                file = FollowedFile(fd, self._new_masker)
                # Of a file that nothing was read of, only its name says that it is no other one.
                if file.fits(place) and (place.offset or candidate.name.startswith(self._path.name)):
                    self._add(file)
                    return
                file.close()
        except OSError as error:
            logger.warning("%s cannot be looked for in its folder: %s", self._path, error)

    def _with_inode(self, inode: int) -> Iterator[Path]:
        with os.scandir(self._path.parent) as entries:
            for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False):
                if entry.inode() == inode and entry.name != self._path.name:
                    yield self._path.with_name(entry.name)
