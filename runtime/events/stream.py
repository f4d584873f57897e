"""`EventStream`: one thread owns the stream of a run's events; everybody else hands over to it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from runtime.events.kinds import Annotation, Done, Event, Json, Metric, Open, Point, plain
from runtime.events.targets import Backlog, Resumable, Segment, Target

__all__ = ["EventStream", "StreamSummary", "now_ms"]

logger = logging.getLogger(__name__)

_MAX_BEHIND = 100_000
"""Hand-overs that may wait for the thread (a disk may hang); metrics beyond it are dropped and counted."""

_PATIENCE_S = 0.25
"""How long metrics may wait for a lull."""

_LULLS_APART_S = 0.1
"""Shorter steps are written several at once: each time the thread wakes, its code has left the caches."""

Answer = TypeVar("Answer")
Resolve = Callable[[], Iterable[Point]]


def now_ms() -> int:
    """Return the Unix epoch in milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """How a stream ended. `dropped` says per target, and for `stream` itself, what was lost and why.

    `unsent` events were taken and neither delivered nor lost: what the last checkpoint carries of them, a
    resume sends. `url` unset means that no Metrics server was asked, or that none answered.
    """

    dropped: Mapping[str, Mapping[str, int]]
    unsent: int = 0
    url: str | None = None

    @property
    def num_dropped(self) -> int:
        """Return the sum of everything dropped."""
        return sum(sum(reasons.values()) for reasons in self.dropped.values())


class EventStream:
    """Everything that a run says, in order, to every target.

    Any thread hands over; it costs about a microsecond, never waits for a target and never raises. What is
    handed over in one call reaches each target in one write. A target that can no longer be written is
    dropped, said and counted. Lives as long as an attempt; `close` ends it.
    """

    def __init__(self, targets: Sequence[Target], *, clock_ms: Callable[[], int] = now_ms) -> None:
        self._clock_ms = clock_ms
        self._targets = list(targets)
        self._live = list(targets)
        self._metrics = next((target for target in targets if isinstance(target, Resumable)), None)
        self._carried: tuple[str, ...] = ()
        self._slug = ""
        self._dropped: dict[str, Counter[str]] = {"stream": Counter()}
        self._num_behind = 0
        self._positions: dict[int, int] = {}
        self._summary: StreamSummary | None = None
        self._ended = False
        self._handing = threading.Lock()
        self._handed = 0
        self._processed = 0
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]] | None] = deque()
        self._due = threading.Event()
        self._last_lull = -math.inf
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    # What a run says

    def open(self, event: Open) -> None:
        """Begin an attempt's stream. The first hand-over."""
        self._slug = event.slug
        self._hand(self._write, [event])

    def metrics(self, step: int, resolve: Resolve) -> None:
        """Report what `resolve` returns, which the stream's thread calls: there it may wait for a device."""
        if len(self._queue) > _MAX_BEHIND:
            self._num_behind += 1
            return
        with self._handing:
            self._handed += 1
            self._queue.append((self._write_metrics, (self._clock_ms(), step, resolve)))

    def lull(self) -> None:
        """Say that the caller now computes for a while without needing the interpreter: a good time to write.

        Metrics wait for it, a quarter of a second at most. A forward pass needs the interpreter again for
        every operation, and would stand still at one of them: 0.2 ms a step until the thread has written,
        0.05 to 0.1 ms just for waking it.
        """
        now = time.monotonic()
        if self._queue and now - self._last_lull >= _LULLS_APART_S:
            self._last_lull = now
            self._due.set()

    def annotate(self, step: int, text: str, metadata: Mapping[str, Json]) -> None:
        """Say `text` at `step`. What is beyond the wire's limits is cut off, and stands in the log."""
        self._hand(self._write_annotation, self._clock_ms(), step, text, dict(metadata))

    def done(self, slug: str) -> None:
        """End the stream of a run that finished."""
        self._hand(self._write, [Done(self._clock_ms(), slug)])

    def fail(self, step: int, error: str) -> None:
        """End the stream of a run that failed: `failed: <error>`, then done; to Metrics error, not done."""
        ts_ms = self._clock_ms()
        self._hand(self._write_annotation, ts_ms, step, f"failed: {error}", {"error": error})
        self._hand(self._write, [Done(ts_ms, self._slug, error=error)])

    def catch_up(self, *, timeout_s: float) -> None:
        """Wait until everything handed over so far is written; for a target that hangs, no longer."""
        written = threading.Event()
        self._hand(written.set)
        written.wait(timeout_s)

    # What a checkpoint needs

    def mark(self) -> int:
        """Return a position: everything that was handed over so far."""
        return self._hand(self._remember_position)

    def sync(self, mark: int) -> None:  # noqa: ARG002 (what follows the mark may be durable too)
        """Return when the files are durable up to `mark`."""
        self._ask(self._sync_targets)

    def backlog(self, mark: int) -> Backlog:
        """Return what Metrics has not acknowledged up to `mark`; marks are asked about in their order."""
        return self._ask(lambda: self._cut(mark)) or Backlog(None, ())

    def inherit(self, segments: Iterable[Segment]) -> None:
        """Take over what an earlier attempt could not send. Before `open`.

        Without a Metrics target it travels on with every checkpoint, for a resume that has one.
        """
        if self._metrics is not None:
            self._metrics.inherit(segments)
        else:
            self._carried = tuple(segment.name for segment in segments)

    def close(self, *, timeout_s: float) -> StreamSummary:
        """Deliver what is left within `timeout_s` seconds, end the thread, and say what was lost."""
        if self._summary is None:
            deadline = time.monotonic() + timeout_s
            self._queue.append(None)
            self._due.set()
            self._thread.join(timeout_s)
            # Metrics first: the others need no time, unless nobody reads them.
            for target in sorted(self._live, key=lambda target: target is not self._metrics):
                self._close(target, max(0.0, deadline - time.monotonic()))
            self._summary = self._summarise()
        return self._summary

    # The thread

    def _hand(self, act: Callable[..., None], *arguments: Any) -> int:
        with self._handing:
            self._handed += 1
            self._queue.append((act, arguments))
            self._due.set()
            return self._handed

    def _run(self) -> None:
        while True:
            self._due.wait(_PATIENCE_S)
            self._due.clear()
            while self._queue:
                item = self._queue.popleft()
                if item is None:
                    return
                self._processed += 1
                act, arguments = item
                try:
                    act(*arguments)
                except Exception:
                    self._dropped["stream"]["failed"] += 1
                    logger.exception("an event could not be written")

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        """Have the thread answer, after everything handed over before; unset when it has ended."""
        answers: list[Answer] = []
        answered = threading.Event()

        def act() -> None:
            try:
                answers.append(question())
            finally:
                answered.set()

        self._hand(act)
        while not answered.wait(1.0) and self._thread.is_alive():
            pass
        return answers[0] if answers else None

    def _write_metrics(self, ts_ms: int, step: int, resolve: Resolve) -> None:
        events: list[Event] = []
        try:
            for name, value, metadata in resolve():
                events.append(Metric(ts_ms, step, name, float(value), metadata))
        except Exception:
            self._dropped["stream"]["failed"] += 1
            logger.exception("the metrics of step %d could not be computed", step)
        self._write(events)

    def _write_annotation(self, ts_ms: int, step: int, text: str, metadata: Mapping[str, Json]) -> None:
        annotation = Annotation.fitted(ts_ms, step, text, metadata)
        if annotation.text != text or annotation.metadata != plain(metadata):
            logger.info("annotation at step %d, whole:\n%s\n%r", step, text, metadata)
        self._write([annotation])

    def _write(self, events: Sequence[Event]) -> None:
        if self._ended:  # a save that was given up may have counted all the same
            logger.info("after the end of the stream: %s", "; ".join(map(str, events)))
            return
        good: list[Event] = []
        lines: list[bytes] = []
        for event in events:
            try:
                lines.append(event.encode())
                good.append(event)
            except Exception:
                self._dropped["stream"]["failed"] += 1
                logger.exception("an event could not be encoded")
        if not good:
            return
        for target in self._targets:
            self._write_to(target, good, lines)
        if isinstance(good[-1], Done):
            self._ended = True
            self._sync_targets()

    def _write_to(self, target: Target, events: Sequence[Event], lines: Sequence[bytes]) -> None:
        if target not in self._live:
            self._lost(target)["not written"] += len(events)
            return
        try:
            target.write(events, lines)
        except OSError as error:
            self._lost(target)["not written"] += len(events)
            self._drop(target, error)
        except Exception:
            self._lost(target)["failed"] += len(events)
            logger.exception("%s could not take %d events", target.name, len(events))

    def _sync_targets(self) -> None:
        for target in list(self._live):
            try:
                target.sync()
            except OSError as error:
                self._drop(target, error)

    def _remember_position(self) -> None:
        if self._metrics is not None:
            self._positions[self._processed] = self._metrics.position()

    def _cut(self, mark: int) -> Backlog:
        if self._metrics is None:
            return Backlog(None, self._carried)
        position = self._positions[mark]
        self._positions = {mark: at for mark, at in self._positions.items() if at >= position}
        return self._metrics.backlog(position)

    def _drop(self, target: Target, error: OSError) -> None:
        self._live.remove(target)
        logger.error("%s can no longer be written (%s): it gets no more events", target.name, error)

    def _lost(self, target: Target) -> Counter[str]:
        return self._dropped.setdefault(target.name, Counter())

    def _close(self, target: Target, timeout_s: float) -> None:
        try:
            target.close(timeout_s)
        except OSError as error:
            self._drop(target, error)
        except Exception:
            logger.exception("%s could not be closed", target.name)

    def _summarise(self) -> StreamSummary:
        if self._num_behind:
            self._dropped["stream"]["behind"] += self._num_behind
        for target in self._targets:
            self._lost(target).update(target.dropped)
        dropped = {name: dict(reasons) for name, reasons in self._dropped.items() if reasons}
        for name, reasons in dropped.items():
            shown = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
            logger.warning("events dropped by %s: %s", name, shown)
        if self._metrics is None:
            return StreamSummary(dropped)
        return StreamSummary(dropped, self._metrics.unsent, self._metrics.url)
