"""An attempt that has claimed its run: what it inherits, whether it still owns it, how it ends."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from runtime.checkpoints.record import CheckpointEntry, EndEntry, RunRecord, change_record, read_record
from runtime.errors import RunError, Superseded, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.checkpoints.reader import Checkpoint
    from runtime.checkpoints.retention import Retention
    from runtime.checkpoints.saver import Saver
    from runtime.checkpoints.store import Store
    from runtime.events.targets import Segment

__all__ = ["Attempt"]

CHECK_EVERY_S = 5.0  # of one core, 0.1 %: an S3 request costs about 5 ms
END_TRIES = 3

_log = logging.getLogger(__name__)


class Attempt:
    """The newest attempt of a run until a newer one claims it. Made by `Location.claim`."""

    def __init__(
        self, store: Store, record: RunRecord, checkpoint: Checkpoint | None, *, clock_ms: Callable[[], int]
    ) -> None:
        self.store = store
        self.slug = record.slug
        self.number = record.attempt.number
        self.session = record.attempt.session
        self.checkpoint = checkpoint
        self.started_from = checkpoint.step if checkpoint else 0
        self.clock_ms = clock_ms
        self._known = {checkpoint.entry.order} if checkpoint else set()
        self._superseded: Superseded | None = None
        self._watch: threading.Thread | None = None
        self._looked_s = -CHECK_EVERY_S

    def segments(self) -> list[Segment]:
        """What the loaded checkpoint carries for Metrics, oldest first.

        A segment that cannot be read any more is lost, which the log says: the checkpoint is whole without.
        """
        from runtime.checkpoints.format import Damaged
        from runtime.checkpoints.reader import read_segment
        from runtime.events.targets import Segment

        found = []
        for entry in self.checkpoint.entry.segments if self.checkpoint else ():
            try:
                found.append(Segment(entry.name, read_segment(self.store, entry)))
            except Damaged as error:
                _log.error("unsent events are lost: %s", error)
        return found

    def saver(
        self, *, expected_bytes: int, keep_last: int = 2, keep_every: int | None = None, **tuning: Any
    ) -> Saver:
        """Begin to make ready what saving needs, and to sweep what dead attempts left; see `Saver`.

        Raises:
            Rejected: a retention that would lose the run.
        """
        from runtime.checkpoints.retention import Retention
        from runtime.checkpoints.saver import Saver
        from runtime.checkpoints.sweep import sweep

        retention = Retention(keep_last=keep_last, keep_every=keep_every)
        saver = Saver(self, retention=retention, expected_bytes=expected_bytes, **tuning)
        threading.Thread(
            target=sweep,
            args=(self.store, self.session),
            kwargs={"now_ms": self.clock_ms},
            name="checkpoint-sweep",
            daemon=True,
        ).start()
        return saver

    def check(self) -> None:
        """Raise `Superseded` once a newer attempt is known to own the run; never wait for the location.

        The record is read in the background, at most every five seconds while somebody asks.
        """
        if self._superseded is not None:
            raise self._superseded
        reading = self._watch is not None and self._watch.is_alive()
        if not reading and time.monotonic() - self._looked_s >= CHECK_EVERY_S:
            self._watch = threading.Thread(target=self._look, name="checkpoint-watch", daemon=True)
            self._watch.start()

    def publish(
        self, entry: CheckpointEntry, retention: Retention
    ) -> tuple[RunRecord, tuple[CheckpointEntry, ...]]:
        """Make the record name `entry`; return the record, and the checkpoints that it names no longer.

        May be called again after `Unavailable`: a try whose reply was lost is not repeated.

        Raises:
            Superseded: a newer attempt owns the run.
            Unavailable: the location cannot be reached.
        """
        known = self._known | {entry.order}
        before = [entry]

        def change(record: RunRecord) -> RunRecord:
            if entry in record.checkpoints:
                return record
            before[:] = [*record.checkpoints, entry]
            gone = retention.dropped(before, known)
            kept = tuple(one for one in before if one not in gone)
            return msgspec.structs.replace(record, checkpoints=kept)

        record = self._change(change)
        self._known = known
        return record, tuple(one for one in before if one not in record.checkpoints)

    def end(self, status: str, step: int) -> None:
        """Write into the record how it ended (`done`, `interrupted` or `failed`), after `step` updates.

        Raises:
            Superseded: a newer attempt owns the run.
            Unavailable: the location cannot be reached.
        """
        ended = EndEntry(attempt=self.number, status=status, step=step, ended_ms=self.clock_ms())
        for tries_left in reversed(range(END_TRIES)):
            try:
                self._change(lambda record: msgspec.structs.replace(record, ended=ended))
            except Unavailable as error:
                if not tries_left:
                    raise
                _log.warning("writing the end again: %s", error)
            else:
                return

    def _change(self, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        try:
            return change_record(self.store, self.session, change)
        except Superseded as error:
            self._superseded = error
            raise

    def _look(self) -> None:
        try:
            found = read_record(self.store)
            if found is not None and found[0].attempt.session != self.session:
                self._change(lambda record: record)
        except RunError as error:  # not readable now: the next look may be luckier
            _log.debug("the record could not be read: %s", error)
        finally:
            self._looked_s = time.monotonic()
