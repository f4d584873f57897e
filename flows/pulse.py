"""Signs of life and logs at a run's location: what is left to look at when a host is gone."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from runtime.checkpoints.store import Missing, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["PULSE", "Pulse", "Upkeep", "log_name", "read_pulse"]

PULSE = "pulse.json"
LOGS = "logs/"
UPLOAD_LIMIT_BYTES = 32 << 20
HEAD_BYTES = 1 << 20
UPLOAD_EVERY_S = 30.0


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """A flow process's sign of life. `beat` grows with each; nobody compares clocks of two hosts."""

    token: str
    beat: int
    at_ms: int
    step: int
    event_ms: int


def read_pulse(store: Store) -> Pulse | None:
    """Return the newest sign of life; unset: there never was one.

    Raises:
        Unavailable: the location cannot be reached.
    """
    try:
        return msgspec.json.decode(store.get(PULSE)[0], type=Pulse)
    except Missing:
        return None


def log_name(number: int) -> str:
    """Return the key of an attempt's log at the location."""
    return f"{LOGS}attempt-{number:04d}.log"


@dataclass(slots=True)
class _Log:
    path: Path
    name: str
    uploaded_bytes: int = 0


class Upkeep:
    """Writes the pulse at each `tick`, and every half minute the attempt's log if it has grown.

    A log above 32 MiB is kept as its first MiB and its last 31, with a line between that says so.
    """

    def __init__(self, store: Store, token: str, *, progress: Callable[[], tuple[int, int]]) -> None:
        self._store, self._token, self._progress = store, token, progress
        self._beat = 0
        self._log: _Log | None = None
        self._left: list[_Log] = []
        self._earlier: list[_Log] = []
        self._uploaded_at, self._closing = 0.0, False
        self._lock = threading.Lock()

    def follow(self, path: Path, number: int) -> None:
        """Upload another log from now on; what is left of the last one goes with the next tick."""
        with self._lock:
            if self._log is not None:
                self._left.append(self._log)
            self._log = _Log(path, log_name(number))
            self._uploaded_at = time.monotonic()

    def catch_up(self, logs: Mapping[int, Path]) -> None:
        """Upload with the next tick those logs of earlier attempts that the location has not whole."""
        with self._lock:
            self._earlier += [_Log(path, log_name(number)) for number, path in logs.items()]

    def tick(self) -> None:
        """Write what is due.

        Raises:
            Unavailable: the location cannot be reached.
        """
        self._beat += 1
        step, event_ms = self._progress()
        now_ms = time.time_ns() // 1_000_000
        pulse = Pulse(token=self._token, beat=self._beat, at_ms=now_ms, step=step, event_ms=event_ms)
        self._store.put(PULSE, msgspec.json.encode(pulse))
        with self._lock:
            self._look_for_earlier()
            while self._left:
                self._upload(self._left[0])
                self._left.pop(0)
            if self._log is not None and (self._closing or self._due()):
                self._upload(self._log)
                self._uploaded_at = time.monotonic()

    def close(self) -> None:
        """Let the next tick, the last one, upload what there is."""
        self._closing = True

    def _due(self) -> bool:
        return time.monotonic() - self._uploaded_at >= UPLOAD_EVERY_S

    def _look_for_earlier(self) -> None:
        if not self._earlier:
            return
        kept = {found.key: found.size_bytes for found in self._store.list(LOGS)}
        there = [log for log in self._earlier if log.path.exists()]  # somebody may be tidying up
        self._left += [log for log in there if kept.get(log.name) != _kept_bytes(log.path)]
        self._earlier = []

    def _upload(self, log: _Log) -> None:
        size = log.path.stat().st_size if log.path.exists() else 0
        if size != log.uploaded_bytes:
            self._store.put(log.name, _shortened(log.path, size))
            log.uploaded_bytes = size


def _shortened(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        if size <= UPLOAD_LIMIT_BYTES:
            return file.read(size)
        head = file.read(HEAD_BYTES)
        tail_bytes = UPLOAD_LIMIT_BYTES - HEAD_BYTES
        file.seek(size - tail_bytes)
        return head + _gap(size) + file.read(tail_bytes)


def _kept_bytes(path: Path) -> int:
    """Return how much is uploaded of a log."""
    size = path.stat().st_size
    return size if size <= UPLOAD_LIMIT_BYTES else UPLOAD_LIMIT_BYTES + len(_gap(size))


def _gap(size: int) -> bytes:
    return f"\n... {size - UPLOAD_LIMIT_BYTES} bytes left out ...\n".encode()
