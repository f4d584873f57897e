"""`Lines`: bytes in, masked lines out, each with the place in the file at which reading may begin again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from runtime.telemetry.rules import MAX_LINE_BYTES

if TYPE_CHECKING:
    from runtime.telemetry.masking import Masker

__all__ = ["Line", "Lines"]

Line: TypeAlias = "tuple[bytes, int | None]"
"""A line without its line feed, and the offset behind that; None: reading must not begin again there."""

_KEPT_BYTES = MAX_LINE_BYTES + 3
"""Of a line: enough to see that it is too long, whatever its line end is."""

_MAX_GROUP = 10_000


class Lines:
    """Splits what it is fed into lines, masked before; lives as long as one file is read without a gap.

    Lines that a secret may reach over come together, once that is known. Memory is bounded: of a line that is
    too long only its beginning is kept.
    """

    def __init__(self, masker: Masker | None) -> None:
        self._masker = masker
        self._rest = b""
        self._ends: deque[int] = deque()
        self._group: list[bytes] = []

    def feed(self, data: bytes, offset: int) -> list[Line]:
        """Return the lines that `data`, which stands at `offset`, makes whole."""
        if self._masker is None:
            return self._whole(data, offset)
        if self._masker.at_rest and self._masker.mask(data) == data:
            return self._without_secret(self._masker, data, offset)
        found: list[Line] = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            found += self._line(self._masker, line + b"\n", offset)
            offset += len(line) + 1
        self._hold(self._masker.feed(rest))
        return found

    def flush(self) -> list[bytes]:
        """Return what has no line feed as the line that it is, and forget it; nothing more follows it."""
        if self._masker is not None:
            self._hold(self._masker.flush())
        rest, self._rest = self._rest, b""
        lines, self._group = self._group, []
        self._ends.clear()
        return [*lines, rest] if rest else lines

    def _whole(self, data: bytes, offset: int) -> list[Line]:
        *lines, rest = data.split(b"\n")
        found: list[Line] = []
        for line in lines:
            offset += len(line) + 1
            found.append((self._joined(line), offset))
        self._keep(rest)
        return found

    def _without_secret(self, masker: Masker, data: bytes, offset: int) -> list[Line]:
        """Return the lines of what no secret stands in, whole; its end may be the beginning of one."""
        for line in data.split(b"\n")[:-1]:
            offset += len(line) + 1
            self._ends.append(offset)
        ends = self._hold(masker.feed(data))
        if not ends:
            return []
        lines, self._group = self._group, []
        return [*((line, None) for line in lines[: -len(ends)]), *zip(lines[-len(ends) :], ends, strict=True)]

    def _line(self, masker: Masker, line: bytes, offset: int) -> list[Line]:
        """Return what is certain after `line`, with its line feed, where secrets are; none is cut in two."""
        self._ends.append(offset + len(line))
        ends = self._hold(masker.feed(line))
        if not ends or not (masker.at_rest or len(self._group) >= _MAX_GROUP):
            return []
        *lines, last = self._group
        self._group = []
        return [*((line, None) for line in lines), (last, ends[-1])]

    def _hold(self, masked: bytes) -> list[int]:
        """Take masked bytes; return where the lines end that they make whole. Line feeds are never masked."""
        *lines, rest = masked.split(b"\n")
        self._group.extend(map(self._joined, lines))
        self._keep(rest)
        return [self._ends.popleft() for _ in lines]

    def _joined(self, line: bytes) -> bytes:
        if not self._rest and not line.startswith(b"\0"):
            return line
        self._keep(line)
        joined, self._rest = self._rest, b""
        return joined

    def _keep(self, part: bytes) -> None:
        # Zeros before a line are a hole, where a file was cut under somebody who writes on at his own place.
        part = part if self._rest else part.lstrip(b"\0")
        self._rest += part[: _KEPT_BYTES - len(self._rest)]
