"""Where events go: the `Target` Protocol, and from what `--metrics` says to the targets themselves."""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from runtime.errors import Rejected
from runtime.events.lines import JsonlTarget, PipeTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from runtime.events.kinds import Event

__all__ = ["Backlog", "MemoryTarget", "Resumable", "Segment", "Target", "parse_target", "parse_targets"]

STDOUT_FD = 1


class Target(Protocol):
    """Somewhere that events go: a file, a pipe, a server.

    It exists so that the stream needs to know of none of them. The stream's thread calls `write` and `sync`;
    `close` is called once, after the last of those.
    """

    @property
    def name(self) -> str:
        """What the log and the summary call it: the target as it was asked for."""
        ...

    @property
    def dropped(self) -> Mapping[str, int]:
        """Events that it lost so far, by reason."""
        ...

    def check(self) -> None:
        """Look at everything that can be known before a run starts, and touch nothing.

        Raises:
            Rejected: the target can not work as it was asked for.
        """
        ...

    def write(self, events: Sequence[Event], lines: Sequence[bytes]) -> None:
        """Take the events of one hand-over; `lines` are their encodings, each with its line feed.

        Raises:
            OSError: it can no longer be written. The stream then drops it.
        """
        ...

    def sync(self) -> None:
        """Make durable what was written. Raises `OSError` like `write`."""
        ...

    def close(self, timeout_s: float) -> None:
        """Deliver what is left within `timeout_s`, then let go. Raises `OSError` like `write`."""
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """Events that Metrics has not acknowledged, as lines: what a checkpoint carries to a resume."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Backlog:
    """What Metrics has not acknowledged up to a mark.

    `new` unset means that nothing is left which no earlier segment holds. `names` are all segments, inherited
    ones and `new` included, that still hold an unacknowledged event.
    """

    new: Segment | None
    names: tuple[str, ...]


@runtime_checkable
class Resumable(Target, Protocol):
    """A target that remembers what it could not deliver, so that a checkpoint can carry it."""

    def position(self) -> int:
        """Return how many events it has taken so far."""
        ...

    def backlog(self, position: int) -> Backlog:
        """Cut off what is undelivered up to `position` and in no segment yet."""
        ...

    def inherit(self, segments: Iterable[Segment]) -> None:
        """Take over what an earlier attempt could not deliver; before the first `write`."""
        ...

    @property
    def unsent(self) -> int:
        """Events taken and neither delivered nor dropped."""
        ...

    @property
    def url(self) -> str | None:
        """Where the experiment can be looked at; unset until that is known."""
        ...


class MemoryTarget:
    """Keeps everything in memory. Lives as long as a test or a notebook wants to look at it."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.dropped: Counter[str] = Counter()
        self.events: list[Event] = []
        self.lines: list[bytes] = []
        self.num_writes = 0
        self.num_syncs = 0
        self.closed = False

    def check(self) -> None:
        """Accept everything."""

    def write(self, events: Sequence[Event], lines: Sequence[bytes]) -> None:
        """Keep the events and their lines."""
        self.num_writes += 1
        self.events += events
        self.lines += lines

    def sync(self) -> None:
        """Count that it was asked to be durable."""
        self.num_syncs += 1

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 (a Target's signature)
        """Note that the stream has ended."""
        self.closed = True


def parse_targets(
    specs: Sequence[str], env: Mapping[str, str], *, session: str, folder: str | None = None
) -> list[Target]:
    """Return the targets that `--metrics` names, in that order; nothing is opened or asked yet.

    `session` is the attempt's: 32 hex digits. `folder` is where Metrics shows the experiment.

    Raises:
        Rejected: a target is unknown, cannot work, or stands there twice; a folder without `syvain`.
    """
    if folder is not None and "syvain" not in specs:
        raise Rejected(f"--folder {folder} has no effect without Metrics: add --metrics syvain")
    targets: dict[str, Target] = {}
    for spec in specs:
        target = parse_target(spec, env, session=session, folder=folder)
        if target.name in targets:
            raise Rejected(f"--metrics {spec} stands there twice: it would write every event twice")
        targets[target.name] = target
    return list(targets.values())


def parse_target(spec: str, env: Mapping[str, str], *, session: str, folder: str | None = None) -> Target:
    """Return the target that `spec` names: `jsonl:PATH`, `stdout` or `syvain`.

    Raises:
        Rejected: it is none of them, or its settings are missing or wrong.
    """
    kind, _colon, rest = spec.partition(":")
    if kind == "jsonl" and rest:
        return _jsonl(spec, rest)
    if spec == "stdout":
        return _pipe(spec, lambda: os.dup(STDOUT_FD))
    if spec == "syvain":
        from runtime.events.syvain.settings import metrics_settings
        from runtime.events.syvain.target import SyvainTarget

        return SyvainTarget(metrics_settings(env), session=session, folder=folder)
    hint = " (jsonl needs a path)" if kind == "jsonl" else ""
    raise Rejected(f"unknown target {spec!r}{hint}: --metrics takes jsonl:PATH, stdout or syvain")


def _jsonl(spec: str, path_text: str) -> Target:
    try:
        given = Path(path_text).expanduser()
        path = Path(os.path.realpath(given))
        mode = _mode(given)  # as given: the pipe behind /dev/stdout has no name of its own
    except (OSError, ValueError, RuntimeError) as error:
        raise Rejected(f"--metrics {spec} cannot be reached: {error}") from error
    if mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return JsonlTarget(path)
    # Opened without waiting, since a named pipe that nobody reads would hold up the start for ever.
    return _pipe(f"jsonl:{path}", lambda: os.open(given, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))


def _mode(path: Path) -> int | None:
    """What kind of file it is; unset: there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _pipe(name: str, open_fd: Callable[[], int]) -> Target:
    try:
        fd = open_fd()
    except OSError as error:
        raise Rejected(f"--metrics {name} cannot be written: {error.strerror}") from error
    if name != "stdout":  # a standard output's flags are shared with whoever started us
        os.set_blocking(fd, True)
    return PipeTarget(name, fd)
