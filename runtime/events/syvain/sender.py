"""`Sender`: one thread that brings the spool to Metrics, in order, for as long as the run lives."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import Rejected
from runtime.events.limits import MAX_BATCH_EVENTS
from runtime.events.syvain.ahead import Ahead, Batch
from runtime.events.syvain.client import Garbled, Grant, Metrics, Refusal, Trouble
from runtime.events.syvain.folders import find_folder
from runtime.events.syvain.wire import EventError, Line, StartLine, decode_line, messages, start_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runtime.events.kinds import Open
    from runtime.events.syvain.spool import Spool

__all__ = ["Pace", "Sender"]

logger = logging.getLogger(__name__)

_REOPEN = {400, 404, 409, 410, 422}
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long the sender waits for what, in seconds.

    `linger_s`: for more events, before it sends fewer than a full batch. `heartbeat_s`: of silence, before it
    says that the run is alive. `first_delay_s`, doubling to `longest_delay_s`: after trouble; what the server
    asks for instead counts up to `longest_asked_s`. `renew_before_s`: before a token expires.
    """

    linger_s: float = 1.0
    heartbeat_s: float = 25.0
    first_delay_s: float = 0.5
    longest_delay_s: float = 10.0
    longest_asked_s: float = 60.0
    renew_before_s: float = 300.0
    revoke_timeout_s: float = 2.0


class Sender:
    """Opens the experiment, then sends what the spool holds, one request at a time.

    `step` does one thing and says how long to wait before the next; the thread only calls it. Trouble is
    waited out; what Metrics refuses for good is dropped and counted, and when it refuses the experiment
    itself, the sender ends and the spool keeps everything for a resume.
    """

    def __init__(
        self,
        metrics: Metrics,
        spool: Spool,
        *,
        session: str,
        folder: str | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self.url: str | None = None
        self._metrics = metrics
        self._spool = spool
        self._session = session
        self._folder = folder
        self._pace = pace or Pace()
        self._clock = clock
        self._clock_ms = clock_ms

        self._event: Open | None = None
        self._grant: Grant | None = None
        self._unplaced = False
        self._to_start: list[Line] = []
        self._said: set[str] = set()
        self._unanswered: list[Line] = []
        self._batch: Batch | None = None
        self._ahead = Ahead()
        self._read_to = 0
        self._most = MAX_BATCH_EVENTS
        self._renewal_due = False
        self._renewed_for: list[Line] | None = None
        self._renewed_at = -math.inf
        self._waiting_since: float | None = None
        self._answered_at = clock()
        self._troubled_since: float | None = None
        self._delay_s = self._pace.first_delay_s

        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events to Metrics", daemon=True)

    @property
    def num_unsent(self) -> int:
        """Events in the spool that Metrics has neither taken nor refused."""
        return self._spool.end - self._read_to + len(self._unanswered)

    def start(self, event: Open) -> None:
        """Begin to send, in the background, to the experiment that `event` opens."""
        self.open_with(event)
        self._thread.start()

    def open_with(self, event: Open) -> None:
        """Set what opens the experiment."""
        self._event = event

    def wake(self) -> None:
        """Say that there is something to send."""
        self._changed.set()

    def close(self, timeout_s: float) -> None:
        """Send what is left, at most for `timeout_s`."""
        self.end()
        if self._thread.ident is None:
            self._metrics.close()
        else:
            self._thread.join(timeout_s)
        self._given_up.set()

    def end(self) -> None:
        """Let `step` finish: no waiting for more events any more."""
        self._closing.set()
        self._changed.set()

    # One step

    def step(self) -> float | None:
        """Do the next thing; return the seconds until the one after it, unset when there is none.

        A time above zero may be cut short by `wake`, unless there is trouble.
        """
        try:
            pause_s = self._next()
        except Trouble as trouble:
            return self._wait_out(trouble)
        except Refusal as refusal:
            logger.error(  # noqa: TRY400 (the server's word; our stack says nothing more)
                "Metrics refuses this run (%s): nothing more is sent, the rest goes with the checkpoints",
                refusal,
            )
            return None
        self._note_no_trouble()
        return pause_s

    def _next(self) -> float | None:
        if self._grant is None:
            self._open()
        elif self._unplaced:
            self._place(self._grant)
        elif self._renewal_due or self._expires_soon(self._grant):
            self._renew(self._grant)
        elif self._to_start:
            self._send(self._grant, self._to_start)
        elif self._unanswered or self._read_batch(self._grant):
            self._send(self._grant, self._unanswered)
            if not self._unanswered:
                self._spool.acknowledge(self._read_to)
        elif self._closing.is_set():
            self._revoke(self._grant)
            return None
        else:
            return self._idle()
        return 0.0

    def _idle(self) -> float:
        """Return how long there is nothing to do; when it has been long, say that the run lives."""
        now = self._clock()
        until_beat = self._answered_at + self._pace.heartbeat_s - now
        if until_beat <= 0:
            self._to_start = [self._start()]
            return 0.0
        if self._waiting_since is None:
            return until_beat
        return min(until_beat, max(0.0, self._waiting_since + self._pace.linger_s - now))

    def _open(self) -> None:
        assert self._event is not None
        self._grant = self._metrics.open(self._event)
        url = self._metrics.page(self._grant.experiment_id)
        if url != self.url:
            self.url = url
            logger.info("the experiment's page: %s", url)
        self._unplaced = self._folder is not None
        self._to_start = [self._start()]

    def _start(self) -> Line:
        assert self._event is not None
        return decode_line(start_line(self._session, self._event.ts_ms))

    def _place(self, grant: Grant) -> None:
        assert self._folder is not None
        try:
            folder_id = find_folder(self._metrics.folder_tree(), self._folder)
            if folder_id is not None:
                self._metrics.place(grant.experiment_id, folder_id)
        except (Rejected, Refusal) as error:
            logger.warning("the experiment is not put into its folder: %s", error)
        self._unplaced = False

    def _expires_soon(self, grant: Grant) -> bool:
        if self._clock() - self._renewed_at < self._pace.renew_before_s / 5:
            return False  # tokens that live shorter, or clocks that differ, must not make us ask all the time
        return grant.expires_at_ms - self._clock_ms() < self._pace.renew_before_s * 1000

    def _renew(self, grant: Grant) -> None:
        """Get a new token. Where that is refused, open the experiment again, unless the key is refused."""
        if self._clock() - self._renewed_at < self._pace.first_delay_s:
            raise Trouble("a token that was just renewed is refused")
        try:
            self._grant = self._metrics.refresh(grant)
        except Garbled:
            self._grant = None
        except Refusal as refusal:
            if refusal.status not in _REOPEN:
                raise
            self._grant = None
        self._renewal_due = False
        self._renewed_at = self._clock()

    def _read_batch(self, grant: Grant) -> bool:
        """Take the next batch from the spool: a full one, or what there is when more was waited for."""
        num_waiting = self._spool.end - self._read_to
        if num_waiting == 0:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = self._clock()
        waited_s = self._clock() - self._waiting_since
        if num_waiting < MAX_BATCH_EVENTS and waited_s < self._pace.linger_s and not self._closing.is_set():
            return False
        self._batch = self._ahead.take(self._read_to) or self._make(self._read_to, grant)
        self._unanswered = self._batch.lines
        self._read_to += len(self._unanswered)
        self._waiting_since = None
        return True

    def _make(self, position: int, grant: Grant) -> Batch:
        lines = self._spool.read(position, most_lines=MAX_BATCH_EVENTS, most_bytes=_MOST_BYTES)
        return Batch.of(position, lines, grant.experiment_id, with_time=grant.accepts_timestamp_ms)

    def _encoded(self, grant: Grant, lines: list[Line]) -> tuple[Sequence[str], Sequence[bytes]]:
        """Return the ids and messages of `lines`, which are nearly always those of the whole last batch."""
        batch = self._batch
        if (
            batch is not None
            and lines is batch.lines
            and len(lines) == len(batch.ids)
            and batch.experiment_id == grant.experiment_id
            and batch.with_time == grant.accepts_timestamp_ms
        ):
            return batch.ids, batch.messages
        encoded = messages(lines, grant.experiment_id, with_time=grant.accepts_timestamp_ms)
        return [line.message_id for line in lines], encoded

    def _send(self, grant: Grant, lines: list[Line]) -> None:
        """Send the first of `lines`, which is left holding what is still to be sent, or sent again."""
        sent = lines if len(lines) <= self._most else lines[: self._most]
        ids, encoded = self._encoded(grant, sent)
        if self._spool.end - self._read_to >= MAX_BATCH_EVENTS:
            position = self._read_to
            self._ahead.begin(lambda: self._make(position, grant))
        try:
            answers = self._metrics.write(grant, ids, encoded)
        except Refusal as refusal:
            self._answered_at = self._clock()  # an answer too: a refused heartbeat waits for the next silence
            self._take_refusal(lines, sent, refusal)
            return
        self._answered_at = self._clock()
        self._most = min(2 * self._most, MAX_BATCH_EVENTS)
        if self._renewed_for is lines:
            self._renewed_for = None
        if len(answers) == len(ids) and not any(answers.values()):
            del lines[: len(ids)]
            return
        again = [line for line in sent if not self._is_settled(line, answers)]
        lines[: len(ids)] = again
        if again:
            if len(again) < len(ids):
                self._delay_s = self._pace.first_delay_s
            raise _not_taken(again, answers)

    def _is_settled(self, line: Line, answers: Mapping[str, EventError | None]) -> bool:
        if line.message_id not in answers:
            return False
        error = answers[line.message_id]
        if error is not None and not error.retryable:
            self._drop([line], error.code, f"{line.message_id}: {error.text}")
            return True
        return error is None

    def _take_refusal(self, lines: list[Line], sent: Sequence[Line], refusal: Refusal) -> None:
        """Do what may still get a refused request in: a new token, once, or fewer events in one request."""
        if refusal.status in {401, 403} and self._renewed_for is not lines:
            self._renewed_for = lines
            self._renewal_due = True
        elif refusal.status == 413 and len(sent) > 1:
            self._most = len(sent) // 2
        else:
            self._renewed_for = None
            self._drop(sent, refusal.code, f"a request: {refusal}")
            del lines[: len(sent)]

    def _drop(self, lines: Sequence[Line], code: str, what: str) -> None:
        reason = f"refused ({code})"
        if reason not in self._said:
            self._said.add(reason)
            logger.warning("Metrics refuses %s; it is dropped, and so is all that it refuses like this", what)
        # A start is sent again and again, as the heartbeat: no event of the run is lost with it.
        if number := sum(not isinstance(line, StartLine) for line in lines):
            self.dropped[reason] += number

    def _revoke(self, grant: Grant) -> None:
        """Give the token back; whether that works no longer matters."""
        try:
            self._metrics.revoke(grant, timeout_s=self._pace.revoke_timeout_s)
        except (Trouble, Refusal) as error:
            logger.debug("the token was not given back: %s", error)

    # Trouble and the thread

    def _wait_out(self, trouble: Trouble) -> float:
        if self._troubled_since is None:
            self._troubled_since = self._clock()
            logger.warning("Metrics takes no events now (%s): they are kept and sent later", trouble)
        asked_s = min(trouble.retry_after_s or 0.0, self._pace.longest_asked_s)
        delay_s = max(self._delay_s, asked_s)
        self._delay_s = min(2 * self._delay_s, self._pace.longest_delay_s)
        return delay_s

    def _note_no_trouble(self) -> None:
        self._delay_s = self._pace.first_delay_s
        if self._troubled_since is not None:
            waited_s = self._clock() - self._troubled_since
            self._troubled_since = None
            logger.info("Metrics takes events again after %.1f s; %d are waiting", waited_s, self.num_unsent)

    def _run(self) -> None:
        pause_s: float | None = 0.0
        while pause_s is not None and not self._given_up.is_set():
            try:
                pause_s = self.step()
            except Exception:
                logger.exception("sending to Metrics failed")
                self._troubled_since = self._troubled_since or self._clock()
                pause_s = self._pace.longest_delay_s
            if pause_s:
                self._wait(pause_s)
        self._ahead.close()
        self._metrics.close()

    def _wait(self, pause_s: float) -> None:
        if self._troubled_since is None:
            self._changed.wait(pause_s)
        elif self._closing.is_set():
            self._given_up.wait(pause_s)
        else:
            self._closing.wait(pause_s)  # the end is worth one more try at once
        self._changed.clear()


def _not_taken(lines: Sequence[Line], answers: Mapping[str, EventError | None]) -> Trouble:
    errors = [error for line in lines if (error := answers.get(line.message_id)) is not None]
    asked = [error.retry_after_s for error in errors if error.retry_after_s is not None]
    why = f"{errors[0].code}: {errors[0].text}" if errors else "no answer to it"
    return Trouble(f"{len(lines)} events were not taken, {why}", max(asked, default=None))
