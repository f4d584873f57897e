"""The JSONL event file of a run, read strictly: its attempts, and the lines of each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from infra.client.errors import Rejected
from runtime.events.syvain import wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Attempt", "EventFile"]


class _Open(msgspec.Struct, frozen=True):
    ts_ms: int
    slug: str
    description: str
    metadata: dict[str, Any]


class _Kind(msgspec.Struct, frozen=True):
    kind: str


_kinds = msgspec.json.Decoder(_Kind)
_opens = msgspec.json.Decoder(_Open)


@dataclass(slots=True)
class Attempt:
    """The lines from one `open` to the next.

    `session` is derived from the open line (and how many equal ones stand before it in the file), and a
    line's number counts from it: the same line has the same message id in every import of the file, also
    after the file grew. `first_byte` is where the line after the open begins. `ended` unset: no `done`.
    """

    slug: str
    description: str
    metadata: dict[str, Any]
    ts_ms: int
    session: str
    first_byte: int
    num_lines: int = 0
    names: set[str] = field(default_factory=set)
    failed: str | None = None
    ended: wire.Line | None = None

    @property
    def start(self) -> wire.Line:
        """The attempt's start: number 0 of its session."""
        return wire.decode_line(wire.start_line(self.session, self.ts_ms))


class EventFile:
    """A file of events as it is now: what is appended later is not read.

    Raises:
        Rejected: it cannot be read, or a line of it is no event; it says which. A last line without its line
            feed is a kill's or still being written: it is left out and counted in `num_torn_bytes`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_torn_bytes = 0
        self.attempts: list[Attempt] = []
        opened: dict[bytes, int] = {}
        try:
            with path.open("rb") as file:
                at = 0
                for number, line in enumerate(file, 1):
                    at += len(line)
                    if not line.endswith(b"\n"):
                        self.num_torn_bytes = len(line)
                        break
                    self._take(number, line, at, opened)
        except OSError as error:
            raise Rejected(f"{path} cannot be read: {error.strerror}: name a file of events") from error
        if not self.attempts:
            raise Rejected(f"{path} holds no event: name a file that a run wrote with --metrics jsonl:PATH")

    def events(self, attempt: Attempt) -> Iterator[wire.Line]:
        """Yield the metrics and annotations of an attempt, in the order of the file."""
        with self.path.open("rb") as file:
            file.seek(attempt.first_byte)
            for number in range(1, attempt.num_lines + 1):
                event = _decoded(attempt.session, number, file.readline())
                if isinstance(event, wire.MetricLine | wire.AnnotationLine):
                    yield event

    def _take(self, number: int, line: bytes, end: int, opened: dict[bytes, int]) -> None:
        try:
            if _kinds.decode(line).kind == "open":
                self.attempts.append(_attempt(line, end, opened))
            elif not self.attempts:
                raise Rejected(
                    f"{self.path}:{number}: the first line must be an open: it says whose events follow"
                )
            else:
                _note(self.attempts[-1], line)
        except (msgspec.DecodeError, ValueError) as error:
            if isinstance(error, Rejected):
                raise
            raise Rejected(f"{self.path}:{number} is no event: {error}") from error


def _attempt(line: bytes, end: int, opened: dict[bytes, int]) -> Attempt:
    event = _opens.decode(line)
    num_before = opened.get(line, 0)
    opened[line] = num_before + 1
    session = hashlib.blake2b(b"%d:%b" % (num_before, line), digest_size=16, person=b"slugline-import")
    return Attempt(
        event.slug, event.description, event.metadata, event.ts_ms, session.hexdigest(), first_byte=end
    )


def _note(attempt: Attempt, line: bytes) -> None:
    """Count a line, and keep what a whole attempt must know of it."""
    attempt.num_lines += 1
    event = _decoded(attempt.session, attempt.num_lines, line)
    if isinstance(event, wire.MetricLine):
        attempt.names.add(msgspec.json.decode(event.name, type=str))
    elif isinstance(event, wire.AnnotationLine):
        text = msgspec.json.decode(event.annotation, type=str)
        if text.startswith("failed: "):
            attempt.failed = text.removeprefix("failed: ")
    elif isinstance(event, wire.DoneLine):
        attempt.ended = event
        if attempt.failed is not None:
            attempt.ended = wire.ErrorLine(event.session, event.sequence, event.ts_ms, attempt.failed)


def _decoded(session: str, number: int, line: bytes) -> wire.Line:
    if not line.startswith(b"{"):
        raise ValueError("a line must be a JSON object")
    return wire.decode_line(b'{"session":"%b","sequence":%d,%b' % (session.encode(), number, line[1:]))
