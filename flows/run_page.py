"""A run's page in Metrics: what its record says of it, its log and its telemetry, kept as the run is."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from flows.announcing import Announcer
from flows.endings import Action
from flows.pushed_log import PushedLog
from flows.run_writer import MAX_RESULT_BYTES, Record, RunWriter, TelemetryDestination
from runtime.checkpoints.store import Missing
from runtime.errors import Rejected, RunError
from runtime.events.syvain.settings import metrics_settings
from runtime.telemetry.destination import Refused, Trouble
from runtime.telemetry.tail import Tail, TailThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from flows.endings import Decision
    from flows.ledger import Entry, Ledger
    from runtime.checkpoints.store import Store

__all__ = ["RESULT", "RunPage", "last_word", "report_end", "result_of"]

logger = logging.getLogger(__name__)

RESULT = "result.json"
"""Where at the location lies what the last attempt wrote as the run's result."""

RESULT_S = 3.0
"""How long a run that is cancelled waits for its result."""

BETWEEN_ATTEMPTS_S = 3.0
"""How long the next attempt waits for the telemetry of the last one; what is left goes with its own."""

FINAL_STATES = ("done", "failed", "cancelled")
REASON_CHARACTERS = 2_000
AWAY_S = 5.0


class RunPage:
    """Keeps the run's record in the server as the run is, or nothing at all where no server is set.

    Nothing of it holds up the run or makes it fail: what cannot be said now is said later, the newest word
    alone, by a thread that calls `tick`; what cannot be said by `close` is named in the log.
    """

    def __init__(
        self,
        api: RunWriter | None,
        *,
        flow_run_id: str,
        say: Callable[[str], None],
        announcer: Announcer | None = None,
    ) -> None:
        self._api, self._say, self._announcer = api, say, announcer
        self._said: dict[str, Any] = {"flow_run_id": flow_run_id}
        self._log: PushedLog | None = None
        self._left: list[PushedLog] = []
        self._number = 0
        self._last_word: dict[str, Any] = {}
        self._source: _Source | None = None
        self._delivered = True
        self._away_until, self._trouble = 0.0, ""
        self._lock = threading.RLock()
        self._ticking = threading.Lock()

    @classmethod
    def of(
        cls,
        record: Record,
        *,
        flow_run_id: str,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        is_replaced: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Return the page of a run in the server that `environment` names; one that says nothing without.

        `is_replaced` says whether another flow process has taken the run from this one; unset: none has.
        """
        try:
            settings = metrics_settings(environment)
        except Rejected as error:
            logger.info("the run has no page in Metrics: %s", error)
            return cls(None, flow_run_id=flow_run_id, say=say)
        announcer = Announcer(settings, record) if record.announced else None
        api = RunWriter(settings, record, is_replaced=is_replaced)
        return cls(api, flow_run_id=flow_run_id, say=say, announcer=announcer)

    @property
    def address(self) -> str:
        """Where people look at it; "" while no server has been reached."""
        api = self._api
        return "" if api is None else api.page

    @contextlib.contextmanager
    def follow(
        self,
        number: int,
        *,
        log: Path,
        telemetry: Path,
        secrets: Mapping[str, str],
        say: Callable[[str], None],
        left: Mapping[int, Path] | None = None,
    ) -> Iterator[None]:
        """Follow attempt `number` while it runs: its log, and the telemetry that it writes.

        `left` are the logs of attempts before by their numbers, of which their flow processes may have died
        without having told all; unset: there are none.
        """
        if self._announcer is not None:
            self._announcer.begin()
        if self._api is not None:
            self._api.begin(number)
            self._source = _Source(self._api, telemetry, secrets, say)
        if not self._number and number > 1 and telemetry.exists():
            # What the last attempt wrote, and its flow process did not read, is that attempt's.
            self._deliver(number - 1, timeout_s=BETWEEN_ATTEMPTS_S)
        with self._lock:
            self._number = number
            self._put(state="running", attempt=number, reason=None)
            self._left += [PushedLog(before, path) for before, path in (left or {}).items()]
            if self._log is not None:
                self._left.append(self._log)
            self._log = PushedLog(number, log)
        tail = None if self._source is None else self._source.tail(number)
        if tail is not None:
            tail.start()
        try:
            yield
        finally:
            self._delivered = tail is None or tail.finish(timeout_s=BETWEEN_ATTEMPTS_S)

    def retrying(self, reason: str) -> None:
        """Say that the last attempt is over, and the run is not."""
        self._put(state="retrying", reason=_short(reason))

    def stands(self, waiting: str | None) -> None:
        """Say that the run waits, and for what; unset: that it goes on."""
        if waiting is None:
            self._put(state="running", reason=None)
        else:
            self._put(state="waiting", reason=_short(waiting))

    def stopped(self, *, cancelled: bool, store: Store) -> None:
        """Say that this process ends before the run does: it was cancelled, or another will go on.

        A run that is cancelled has ended: what it wrote as its result is kept and judged, if its location
        answers before Prefect would kill us.
        """
        if not cancelled:
            self._put(state="retrying", reason="stopped by a signal")
        elif self._api is not None:
            result = _in_time(lambda: result_of(store, say=self._say), timeout_s=RESULT_S)
            self._put(state="cancelled", reason="cancelled by the user", result=result)

    def ended(self, decision: Decision, ledger: Ledger, store: Store) -> None:
        """Take the run's last word, which `close` says: whoever waits for it may schedule the run again."""
        if self._announcer is not None:
            self._announcer.end(None if decision.action is Action.COMPLETE else decision.reason)
        if self._api is not None:
            self._last_word = last_word(decision, ledger, store, say=self._say)

    def tick(self) -> None:
        """Say what is new. Waits for the server, and is called by a thread that may."""
        if self._api is None or time.monotonic() < self._away_until:
            return
        with self._ticking:
            self._try()

    def close(self, *, timeout_s: float) -> None:
        """Say what is left within `timeout_s`, and name what could not be said."""
        if self._api is None:
            return
        deadline = time.monotonic() + timeout_s
        if self._last_word:
            self._put(**self._last_word)
        unsent = self._announcer.close(timeout_s=timeout_s) if self._announcer is not None else 0
        if not self._delivered:
            self._deliver(self._number, timeout_s=max(1.0, deadline - time.monotonic()))
        while self._is_behind() and (left_s := deadline - time.monotonic()) > 0:
            if self._ticking.acquire(timeout=left_s):
                try:
                    self._try()
                finally:
                    self._ticking.release()
            if self._trouble:
                time.sleep(min(0.5, max(0.0, deadline - time.monotonic())))
        if not self._delivered:
            self._say("telemetry: not all of it has reached Metrics; the file lies at the run's location")
        if self._is_behind() or unsent:
            self._say(f"Metrics was not told everything of this run: {self._trouble or 'no time was left'}")
        self._leave()

    def _leave(self) -> None:
        """Say nothing more."""
        api, self._api, self._source = self._api, None, None
        if api is not None:
            api.close()

    def _deliver(self, number: int, *, timeout_s: float) -> None:
        """Deliver what is left of the telemetry file, as attempt `number`'s."""
        if self._source is not None:
            tail = self._source.tail(number)
            tail.start()
            self._delivered = tail.finish(timeout_s=timeout_s)

    def _put(self, **said: Any) -> None:
        with self._lock:
            if self._number:
                said.setdefault("attempt", self._number)
            self._said.update(said)

    def _is_behind(self) -> bool:
        with self._lock:
            logs = [*self._left, *([self._log] if self._log is not None else [])]
        return self._api is not None and (bool(self._said) or any(log.is_behind() for log in logs))

    def _try(self) -> None:
        assert self._api is not None
        try:
            # Whoever follows a run's log stops at its end: the last lines come before the last word.
            over = self._said.get("state") in FINAL_STATES
            for say in (self._push, self._tell) if over else (self._tell, self._push):
                say(self._api)
        except Trouble as trouble:
            if not self._trouble:
                logger.warning("Metrics: %s; what is left is said later", trouble)
            self._trouble, self._away_until = str(trouble), time.monotonic() + AWAY_S
        except Refused as refused:
            self._say(f"this run's log and telemetry are not kept in Metrics: {refused}")
            self._leave()
        else:
            self._trouble = ""

    def _tell(self, api: RunWriter) -> None:
        with self._lock:
            said = dict(self._said)
        if not said:
            return
        api.tell(said)
        with self._lock:
            for name, value in said.items():
                if self._said.get(name) == value:
                    del self._said[name]

    def _push(self, api: RunWriter) -> None:
        while self._left:
            self._left[0].push(api)
            with self._lock:
                self._left.pop(0)
        if (log := self._log) is not None:
            log.push(api)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a run's telemetry comes from and goes to, and what is masked in it."""

    api: RunWriter
    path: Path
    secrets: Mapping[str, str]
    say: Callable[[str], None]

    def tail(self, number: int) -> TailThread:
        """Return what follows the file for attempt `number`."""
        destination = TelemetryDestination(self.api, number)
        return TailThread(Tail(self.path, destination, secrets=self.secrets, say=self.say))


def last_word(
    decision: Decision, ledger: Ledger, store: Store, *, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return what the record says of a run that is over."""
    last = ledger.attempts[-1] if ledger.attempts else None
    done = decision.action is Action.COMPLETE
    return {
        "state": "done" if done else "failed",
        "reason": None if done else _short(decision.reason),
        "exit_code": None if last is None else exit_code(last),
        "result": result_of(store, say=say),
    }


def exit_code(entry: Entry) -> int | None:
    """Return an attempt's exit code as a shell gives it: 128 and the signal that killed it."""
    if entry.code is None:
        return None
    return entry.code if entry.code >= 0 else 128 - entry.code


def report_end(record: Record, said: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Say the last word on a run whose flow process could not; where that fails, the log has it."""
    try:
        with contextlib.closing(RunWriter(metrics_settings(environment), record)) as api:
            api.tell_from_outside({**said, "reason": _short(said.get("reason") or "") or None})
    except (Rejected, Trouble, Refused) as error:
        logger.info("%s: its page in Metrics was not told: %s", record.slug, error)


def result_of(store: Store, *, say: Callable[[str], None]) -> str | None:
    """Return what the run wrote as its result; unset: nothing that can be kept."""
    try:
        data, _ = store.get(RESULT)
    except (Missing, RunError):
        return None
    text = data.decode(errors="replace")
    size = len(text.encode())  # what was no UTF-8 has grown
    if size > MAX_RESULT_BYTES:
        say(f"{RESULT} has {size:,} bytes as text and is not kept: write at most {MAX_RESULT_BYTES:,}")
        return None
    return text


def _in_time(ask: Callable[[], str | None], *, timeout_s: float) -> str | None:
    """Return what `ask` does; unset: it takes longer than `timeout_s`, and nobody waits for it."""
    answers: list[str | None] = []
    thread = threading.Thread(target=lambda: answers.append(ask()), name="result", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answers[0] if answers else None


def _short(text: str) -> str:
    return text if len(text) <= REASON_CHARACTERS else text[: REASON_CHARACTERS - 4] + " ..."
