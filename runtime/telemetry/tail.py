"""`Tail`: follows a run's telemetry file and delivers its points, none lost and none twice."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING

from runtime.telemetry.destination import Batch, Moved, Refused, Trouble
from runtime.telemetry.followed_path import FollowedPath, end_at
from runtime.telemetry.masking import Masker
from runtime.telemetry.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from runtime.telemetry.cursor import Place
    from runtime.telemetry.destination import Data, Destination

__all__ = ["Tail", "TailThread"]

_MAX_POINTS = 1_000
_MAX_LINES = 10_000
_MAX_SIZE = 1 << 20
_MOVES = 5
_FIRST_WAIT_S, _LONGEST_WAIT_S, _LONGEST_ASKED_S = 0.5, 10.0, 60.0

logger = logging.getLogger(__name__)


class Tail:
    """Reads what is new in the file at `path` and sends it, when it is asked to; `TailThread` asks.

    It begins where the destination says that the tail before it ended. How far it has read is stored with
    the points, in one batch: so it may die at any moment, and what it read and could not deliver stays in
    the file. The values of `secrets` are masked before a line is read. `say` gets one line for the run's log
    the first time that something is dropped for a reason.
    """

    def __init__(
        self,
        path: Path,
        destination: Destination,
        *,
        secrets: Mapping[str, str] | None = None,
        say: Callable[[str], None] = logger.warning,
        linger_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._destination = destination
        self._secrets = dict(secrets or {})
        self._say = say
        self._linger_s = linger_s
        self._clock = clock
        self._file: FollowedPath | None = None
        self._rules = Rules()
        self._after_seq = 0
        self._pending: Batch | None = None
        self._ends: dict[Place, None] = {}
        self.is_behind = False
        """Whether the last batch was full: more is waiting."""

    def turn(self) -> Batch | None:
        """Deliver one batch of what is new and return it; None when nothing is new.

        Raises:
            Trouble: it could not be delivered now; another turn tries it again.
            Refused: it never will be.
            OSError: the file cannot be read.
        """
        for _ in range(_MOVES):
            try:
                return self._turn()
            except Trouble:
                raise
            except Moved as moved:
                logger.info("telemetry goes on from what is stored: %s", moved)
                self.close()
            except BaseException:
                self.close()  # lines may have been taken that are in no batch
                raise
        raise Trouble(f"what is stored moved {_MOVES} times: another tail delivers for the same run")

    def end_here(self) -> None:
        """Note that all who have written so far are gone: what they left without a line feed is a line.

        To be called before an attempt's command starts and after it ended: else what a killed process left
        of a line would be glued to the next one.
        """
        ends = self._file.ends() if self._file is not None else end_at(self._path)
        self._ends |= dict.fromkeys(ends)
        if self._file is not None:
            self._file.end_lines_at(self._ends)

    def close(self) -> None:
        """Let go of the file. Another turn begins with what is stored."""
        if self._file is not None:
            self._file.close()
        self._file = self._pending = None

    def _turn(self) -> Batch | None:
        file = self._file or self._begin()
        batch = self._pending = self._pending or self._read(file)
        if batch is None:
            return None
        try:
            self._destination.send(batch)
        except Moved:
            if not self._is_stored(batch):
                raise
        self._after_seq += len(batch.points)
        self._pending = None
        return batch

    def _is_stored(self, batch: Batch) -> bool:
        """Tell whether what is stored is this very batch: an answer was lost, and no file need be left."""
        stored = self._destination.cursor()
        return (stored.last_seq, stored.cursor) == (batch.after_seq + len(batch.points), batch.cursor)

    def _begin(self) -> FollowedPath:
        stored = self._destination.cursor()
        self._rules = Rules(keys=stored.keys, points=stored.points, dropped=stored.dropped)
        self._after_seq = stored.last_seq
        self._file = FollowedPath(
            self._path,
            stored.cursor,
            new_masker=self._new_masker,
            linger_s=self._linger_s,
            clock=self._clock,
        )
        self._file.end_lines_at(self._ends)
        return self._file

    def _new_masker(self) -> Masker | None:
        return Masker(self._secrets) if self._secrets else None

    def _read(self, file: FollowedPath) -> Batch | None:
        points: list[Data] = []
        num_lines = size = 0
        self.is_behind = False
        for line in file.lines():
            num_lines += 1
            data = self._take(line)
            if data is not None:
                points.append(data)
                size += 32 + sum(map(len, data)) + 24 * len(data)
            full = len(points) >= _MAX_POINTS or size >= _MAX_SIZE or num_lines >= _MAX_LINES
            if full and file.may_stop:
                self.is_behind = True
                break
        if not num_lines:
            return None
        dropped = {reason.value: count for reason, count in self._rules.dropped.items()}
        return Batch(after_seq=self._after_seq, points=points, dropped=dropped, cursor=file.cursor())

    def _take(self, line: bytes) -> Data | None:
        num_reasons = len(self._rules.dropped)
        data = self._rules.take(line)
        if len(self._rules.dropped) > num_reasons:
            for reason in list(self._rules.dropped)[num_reasons:]:
                self._say(f"telemetry: {reason.one}")
        return data


class TailThread:
    """A thread that lets a tail read and deliver, several times a second, until the run's end.

    Whatever happens to it, the run goes on: trouble is waited out, what is refused is said in the log.
    """

    def __init__(self, tail: Tail, *, poll_s: float = 0.25) -> None:
        self._tail = tail
        self._poll_s = poll_s
        self._finishing = threading.Event()
        self._deadline = float("inf")
        self._wait_s = 0.0
        self._is_ended = False
        self._delivered = False
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin to follow; before the command that writes is started."""
        try:
            self._tail.end_here()
        except OSError as error:
            logger.warning("the telemetry file cannot be read: %s", error)
        self._thread.start()

    def finish(self, *, timeout_s: float) -> bool:
        """Read to the end of the file, now that nobody writes to it, and deliver; True when all of it is.

        What could not be delivered within `timeout_s` stays in the file, for the next attempt's tail.
        """
        self._deadline = time.monotonic() + timeout_s
        self._finishing.set()
        self._thread.join(timeout_s + self._poll_s)
        return self._delivered

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._pause()
        except Refused as error:
            logger.error("the telemetry of this run is not taken any more: %s", error)  # noqa: TRY400 - no mistake of ours
        finally:
            self._tail.close()

    def _is_over(self) -> bool:
        """Take a turn; the last ones once the run has ended, until nothing is left or the time is up."""
        is_last = self._finishing.is_set()
        try:
            if is_last and not self._is_ended:
                self._tail.end_here()
                self._is_ended = True
            batch = self._tail.turn()
        except Refused:
            raise
        except Trouble as trouble:
            return self._wait_out(trouble)
        except OSError as error:
            return self._wait_out(Trouble(f"the file cannot be read: {error}"))
        except Exception as error:
            logger.exception("the telemetry file is read again from what is stored")
            return self._wait_out(Trouble(f"{type(error).__name__}: {error}"))
        if self._wait_s:
            logger.info("telemetry is delivered again")
        self._wait_s = 0.0
        self._delivered = is_last and batch is None
        return self._delivered

    def _wait_out(self, trouble: Trouble) -> bool:
        if not self._wait_s:
            logger.warning("telemetry waits, and stays in its file meanwhile: %s", trouble)
        wait_s = min(max(_FIRST_WAIT_S, 2 * self._wait_s), _LONGEST_WAIT_S)
        self._wait_s = max(wait_s, min(trouble.retry_after_s or 0.0, _LONGEST_ASKED_S))
        return time.monotonic() >= self._deadline

    def _pause(self) -> None:
        """Wait before the next turn: not when more is there, and no longer than the run's end allows."""
        wait_s = self._wait_s * random.uniform(0.8, 1.0) or (0.0 if self._tail.is_behind else self._poll_s)
        if not self._finishing.wait(wait_s) or not self._wait_s:
            return
        time.sleep(max(0.0, min(self._wait_s, _FIRST_WAIT_S, self._deadline - time.monotonic())))
