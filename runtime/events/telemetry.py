"""`TelemetryTarget`: a run's metrics written to its telemetry file, under keys that are kept there."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from typing import TYPE_CHECKING

import orjson

from runtime.errors import Rejected
from runtime.events.kinds import Metric
from runtime.telemetry.rules import MAX_LINE_BYTES, MAX_LINE_NUMBERS
from runtime.telemetry.writer import PATH_VARIABLE, LineFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from runtime.events.kinds import Event

__all__ = ["TelemetryTarget", "key_of"]

_OURS = {"split", "stage", "pass"}
_MAX_KNOWN = 4_096


class TelemetryTarget:
    """Appends a line for each step and split: `{"step":4,"train.loss":2.7658,"train.lr":0.001}`.

    Only finite numbers are written. What has no place on a line of 64 numbers or 4 KiB goes on the next one,
    of the same step. Nothing is made durable: telemetry is drawn, and no checkpoint depends on it.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"telemetry:{path}"
        self.dropped: Counter[str] = Counter()
        self._path = path
        self._file = LineFile(path)
        self._keys: dict[tuple[object, ...], str] = {}

    def check(self) -> None:
        """Refuse a file that cannot be appended to."""
        said = f"{PATH_VARIABLE}={self._path}"
        try:
            self._look(said)
        except OSError as error:  # too long, or not ours to look at
            raise Rejected(f"{said} cannot be reached: {error}") from error

    def _look(self, said: str) -> None:
        parent = self._path.parent
        if not parent.is_dir():
            raise Rejected(f"{said}: {parent} is no directory: make it first, or unset the variable")
        if self._path.is_dir():
            raise Rejected(f"{said}: it is a directory, and a file is wanted: add a file name")
        if not os.access(self._path if self._path.exists() else parent, os.W_OK):
            raise Rejected(f"{said}: it is not ours to write: choose another path, or unset the variable")

    def write(self, events: Sequence[Event], lines: Sequence[bytes]) -> None:  # noqa: ARG002 (a Target's signature)
        """Append the metrics among `events` in one write; they are those of one step and split."""
        found: dict[tuple[int, str], dict[str, float]] = {}
        for event in events:
            if isinstance(event, Metric) and math.isfinite(event.value):
                points = found.setdefault((event.step, event.metadata.get("split", "")), {})
                points[self._key(event)] = event.value
        if found:
            self._file.write(
                b"".join(line for (step, _), data in found.items() for line in _lines(step, data))
            )

    def sync(self) -> None:
        """Do nothing: nobody relies on it."""

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 (a Target's signature)
        """Let go of the file."""
        self._file.close()

    def _key(self, event: Metric) -> str:
        metadata = event.metadata
        known = (event.name, *((name, value) for name, value in metadata.items() if name != "stage"))
        key = self._keys.get(known)
        if key is None:
            if len(self._keys) >= _MAX_KNOWN:  # metadata that changes at every call must not fill the memory
                self._keys.clear()
            key = self._keys[known] = key_of(event)
        return key


def key_of(event: Metric) -> str:
    """Return the key under which a metric stands in telemetry.

    `/` becomes `.`, and what no key may hold `_`. Metadata of the file's own follows the name. What an
    evaluation reports stands under `eval`, then the name of its pass unless that is `eval`.
    """
    own = [f"{name}.{event.metadata[name]}" for name in sorted(event.metadata) if name not in _OURS]
    parts = [event.name.replace("/", "."), *own]
    if event.metadata.get("split") == "eval":
        parts[0] = parts[0].removeprefix("eval.")
        name = event.metadata.get("pass", "eval")
        parts = ["eval", *([] if name == "eval" else [name]), *parts]
    return ".".join(".".join(_valid(piece) for piece in part.split(".")) for part in parts)


def _valid(piece: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", piece) or "_"


def _lines(step: int, data: dict[str, float]) -> Iterator[bytes]:
    items = list(data.items())
    size = MAX_LINE_NUMBERS - 1
    for start in range(0, len(items), size):
        yield from _fitted(step, items[start : start + size])


def _fitted(step: int, items: list[tuple[str, float]]) -> Iterator[bytes]:
    """Yield the line of `items`, or two of half of them each where it is too long."""
    line = orjson.dumps({"step": step, **dict(items)}, option=orjson.OPT_APPEND_NEWLINE)
    if len(line) <= MAX_LINE_BYTES or len(items) == 1:
        yield line
        return
    half = len(items) // 2
    yield from _fitted(step, items[:half])
    yield from _fitted(step, items[half:])
