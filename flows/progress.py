"""How far a run is: what its JSONL events say, read while they are written."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["Checkpoint", "Curve", "Progress", "WholeLines"]

MAX_POINTS = 4_000
READ_BYTES = 1 << 20


class WholeLines:
    """The whole lines of a growing file, each once. A torn last line waits for its end, up to a MiB.

    A file that was removed and begun anew is read from its start.
    """

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path, self.offset = path, offset

    def lines(self) -> Iterator[bytes]:
        """Yield what has been completed since the last call, without the line feeds."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            if file.seek(0, os.SEEK_END) < self.offset:
                self.offset = 0
            file.seek(self.offset)
            rest = b""
            while block := file.read(READ_BYTES):
                *whole, rest = (rest + block).split(b"\n")
                for line in whole:
                    self.offset += len(line) + 1
                    yield line
                if len(rest) > READ_BYTES:  # of a line without an end, as progress bars write it
                    self.offset += len(rest)
                    yield rest
                    rest = b""


class _Event(msgspec.Struct):
    kind: str
    ts_ms: int = 0
    step: int = 0
    name: str = ""
    value: float | None = None
    annotation: str = ""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that the run announced; `seconds` as in its annotation."""

    step: int
    path: str
    seconds: float
    ts_ms: int


@dataclass(slots=True)
class Curve:
    """One metric over steps, thinned out as it grows. A resume's points replace those it repeats."""

    points: list[tuple[int, float]] = field(default_factory=list)
    _stride: int = 1
    _seen: int = 0

    def add(self, step: int, value: float) -> None:
        """Take one more point."""
        self._seen += 1
        if self._seen % self._stride:
            return
        self.points.append((step, value))
        if len(self.points) > MAX_POINTS:
            del self.points[::2]
            self._stride *= 2

    def cut(self, step: int) -> None:
        """Forget the points from `step` on: they are computed again."""
        while self.points and self.points[-1][0] >= step:
            self.points.pop()


@dataclass(slots=True)
class Progress:
    """What the events of a run say so far. `total` unset: no `open` yet, or one that does not tell."""

    total: int | None = None
    step: int = 0
    last_event_ms: int = 0
    rate: tuple[str, float] | None = None
    train_loss: Curve = field(default_factory=Curve)
    eval_loss: Curve = field(default_factory=Curve)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    failed: tuple[int, str] | None = None
    done: bool = False

    def read(self, lines: Iterable[bytes]) -> None:
        """Take in more lines of the stream; what is no event of ours is passed over."""
        for line in lines:
            try:
                event = _DECODER.decode(line)
            except msgspec.DecodeError:
                continue
            self.last_event_ms = max(self.last_event_ms, event.ts_ms)
            _TAKE.get(event.kind, _pass)(self, event)


def _take_open(progress: Progress, event: _Event) -> None:
    progress.total = event.metadata.get("run", {}).get("steps")
    progress.failed, progress.done, progress.step = None, False, 0


def _take_metric(progress: Progress, event: _Event) -> None:
    progress.step = max(progress.step, event.step)
    if event.value is None:
        return
    if event.name == "train/loss":
        progress.train_loss.add(event.step, event.value)
    elif event.name == "eval/loss":
        progress.eval_loss.add(event.step, event.value)
    elif event.name.startswith("rate/"):
        progress.rate = (event.name.removeprefix("rate/"), event.value)


def _take_annotation(progress: Progress, event: _Event) -> None:
    metadata = event.metadata
    progress.step = max(progress.step, event.step)
    if event.annotation.startswith("checkpoint ") and "checkpoint" in metadata:
        seconds = float(metadata.get("seconds", 0))
        progress.checkpoints.append(Checkpoint(event.step, metadata["checkpoint"], seconds, event.ts_ms))
    elif event.annotation.startswith("resumed from "):
        progress.step = event.step
        progress.train_loss.cut(event.step)
        progress.eval_loss.cut(event.step + 1)  # the evaluation at its boundary came before the checkpoint
    elif event.annotation.startswith("failed: "):
        progress.failed = (event.step, str(metadata.get("error", event.annotation.removeprefix("failed: "))))


def _take_done(progress: Progress, _event: _Event) -> None:
    progress.done = True


def _pass(_progress: Progress, _event: _Event) -> None:
    return


_DECODER = msgspec.json.Decoder(_Event)
_TAKE = {"open": _take_open, "metric": _take_metric, "annotation": _take_annotation, "done": _take_done}
