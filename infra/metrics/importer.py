"""From an event file to the experiments that it is about."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from infra.client.errors import Refused, Unavailable
from infra.metrics.already_there import AlreadyThere, Fingerprints
from runtime.events.kinds import Open
from runtime.events.syvain import wire
from runtime.events.syvain.client import Refusal, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from infra.metrics.api import Api
    from infra.metrics.event_file import Attempt, EventFile
    from runtime.events.syvain.client import Grant, MetricsClient

__all__ = ["QUIET_MS", "Importer", "Report"]

QUIET_MS = 120_000
"""A run that was not heard of for so long is not alive: its file may tell how it ended."""

_BATCH_EVENTS = 1_000
_BATCH_BYTES = 1 << 20
_MAX_NAMES = 1_000
_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)

T = TypeVar("T")


@dataclass(slots=True)
class Report:
    """What became of the events of one slug. `ending` says what the import told of how the run ended."""

    slug: str
    experiment_id: str | None = None
    num_attempts: int = 0
    num_points: int = 0
    num_annotations: int = 0
    num_there: int = 0
    num_not_finite: int = 0
    ending: str = ""
    refused: Counter[str] = field(default_factory=Counter)


class Importer:
    """Adds to a server what it lacks of event files. `show` is told of every event read.

    An experiment that nobody has started yet (a new one, or one that an import left half-way) gets the file's
    attempts with their descriptions, starts and endings. One that ran gets the points and annotations that it
    lacks, and the ending if it is not known and the run is quiet.
    """

    def __init__(
        self,
        api: Api,
        client: MetricsClient,
        *,
        folder_id: str | None = None,
        show: Callable[[int], None] = lambda _: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._client = client
        self._folder_id = folder_id
        self._show = show
        self._now_ms = now_ms
        self._sleep = sleep

    def run(self, file: EventFile) -> list[Report]:
        """Import a file and return a report for each slug in it.

        Raises:
            Refused: the server said no to all of it.
            Unavailable: the server cannot be reached any more. Importing again goes on where this stopped.
        """
        slugs = dict.fromkeys(attempt.slug for attempt in file.attempts)
        return [
            self._slug(file, slug, [attempt for attempt in file.attempts if attempt.slug == slug])
            for slug in slugs
        ]

    def _slug(self, file: EventFile, slug: str, attempts: Sequence[Attempt]) -> Report:
        found = self._api.get("experiments", slug=slug)["experiments"]
        record = self._record(found[0]["id"]) if found else None
        there = self._there(record, attempts)
        report = Report(slug, found[0]["id"] if found else None, num_attempts=len(attempts))
        if record is None or record["startedAtMs"] is None:
            self._whole(file, attempts, there, report)
        else:
            self._missing(file, attempts, there, report, record)
        return report

    def _whole(
        self, file: EventFile, attempts: Sequence[Attempt], there: AlreadyThere, report: Report
    ) -> None:
        """Import into an experiment that nobody has started: what was told of it comes last, at once."""
        grants = []
        for attempt in attempts:
            grant = self._open(attempt.slug, attempt.description, attempt.metadata, report)
            grants.append(grant)
            for batch in self._batches(file, attempt, there, report):
                self._write(grant, batch, report)
        for attempt, grant in zip(attempts, grants, strict=True):
            told = [attempt.start] if attempt.ended is None else [attempt.start, attempt.ended]
            self._write(grant, told, report)
        report.ending = _ending(attempts[-1])

    def _missing(
        self,
        file: EventFile,
        attempts: Sequence[Attempt],
        there: AlreadyThere,
        report: Report,
        record: dict[str, Any],
    ) -> None:
        """Add what an experiment lacks; where it lacks nothing, nothing of it is touched."""
        grant: Grant | None = None
        ended = attempts[-1].ended
        tells = [ended] if ended is not None and self._is_news(record, ended) else []
        batches = (batch for one in attempts for batch in self._batches(file, one, there, report))
        for batch in (*batches, tells) if tells else batches:
            if grant is None:  # as it is: an import is no reason to show another description
                grant = self._open(record["slug"], record["description"], record["meta"], report)
            self._write(grant, batch, report)
        if tells:
            report.ending = _ending(attempts[-1])
        elif ended is not None and record["status"] in {"created", "running"}:
            report.ending = "not told: the server heard of the run later, or less than two minutes ago"

    def _is_news(self, record: dict[str, Any], ended: wire.Line) -> bool:
        """Whether a file may say how a run ended: nobody else did, and no later process is alive or was."""
        heard_ms = max(record["lastHeartbeatAtMs"] or 0, record["lastEventAtMs"] or 0)
        return (
            record["status"] in {"created", "running"}
            and self._now_ms() - heard_ms > QUIET_MS
            and ended.ts_ms >= (record["lastEventAtMs"] or 0)
        )

    def _batches(
        self, file: EventFile, attempt: Attempt, there: AlreadyThere, report: Report
    ) -> Iterator[list[wire.Line]]:
        """Yield what is to be sent of an attempt, in its order, batch by batch."""
        events = file.events(attempt)
        while read := list(islice(events, _BATCH_EVENTS)):
            self._show(len(read))
            points = [line for line in read if isinstance(line, wire.MetricLine)]
            finite = [line for line in points if bytes(line.value) != b"null"]
            report.num_not_finite += len(points) - len(finite)
            new = {line.sequence for line in there.missing(finite)}
            report.num_there += len(finite) - len(new)
            for line in read:
                if isinstance(line, wire.AnnotationLine):
                    if there.lacks(line):
                        new.add(line.sequence)
                    else:
                        report.num_there += 1
            if new:
                yield [line for line in read if line.sequence in new]

    def _record(self, experiment_id: str) -> dict[str, Any]:
        return dict(self._api.ask("query.experiment", experimentId=experiment_id)["experiment"])

    def _there(self, record: dict[str, Any] | None, attempts: Sequence[Attempt]) -> AlreadyThere:
        if record is None:
            return AlreadyThere(Fingerprints(), (), ())
        id_ = record["experimentId"]
        names = sorted(set().union(*[attempt.names for attempt in attempts]))
        parts = [names[first : first + _MAX_NAMES] for first in range(0, len(names), _MAX_NAMES)]
        frames = (frame for part in parts for frame in self._api.points(id_, names=part))
        annotations = self._api.ask("query.annotations", experimentId=id_)["annotations"]
        return AlreadyThere(Fingerprints(), frames, annotations)

    def _open(self, slug: str, description: str, meta: dict[str, Any], report: Report) -> Grant:
        grant = self._tried(lambda: self._client.open(Open(0, slug, description, meta)))
        if report.experiment_id is None or self._folder_id is not None:
            report.experiment_id = grant.experiment_id
            if self._folder_id is not None:
                folder_id = self._folder_id
                self._tried(lambda: self._client.place(grant.experiment_id, folder_id))
        return grant

    def _write(self, grant: Grant, lines: Sequence[wire.Line], report: Report) -> None:
        """Send lines in requests of about 1 MiB at most, until each is taken or refused for good."""
        waiting: dict[str, bytes] = {}
        refused: set[str] = set()
        size_bytes = 0
        for line in lines:
            text = wire.message(line, grant.experiment_id, with_time=grant.accepts_timestamp_ms)
            if waiting and size_bytes + len(text) > _BATCH_BYTES:
                refused |= self._deliver(grant, waiting, report)
                waiting, size_bytes = {}, 0
            waiting[line.message_id] = text
            size_bytes += len(text)
        refused |= self._deliver(grant, waiting, report)
        taken = [line for line in lines if line.message_id not in refused]
        report.num_points += sum(isinstance(line, wire.MetricLine) for line in taken)
        report.num_annotations += sum(isinstance(line, wire.AnnotationLine) for line in taken)

    def _deliver(self, grant: Grant, messages: dict[str, bytes], report: Report) -> set[str]:
        """Send messages and return the ids of those that the server refused."""
        waiting = dict(messages)
        refused: set[str] = set()

        def send() -> None:
            answers = self._client.write(grant, list(waiting), list(waiting.values()))
            for message_id, error in answers.items():
                if error is None or not error.retryable:
                    del waiting[message_id]
                if error is not None and not error.retryable:
                    refused.add(message_id)
                    report.refused[error.code] += 1
            if waiting:
                raise Trouble("it did not take every event")

        self._tried(send)
        return refused

    def _tried(self, call: Callable[[], T]) -> T:
        for wait_s in (*_WAITS_S, None):
            try:
                return call()
            except Refusal as refusal:
                raise Refused(str(refusal), status=refusal.status, code=refusal.code) from refusal
            except Trouble as trouble:
                if wait_s is None:
                    raise Unavailable(
                        f"Metrics at {self._client.host} does not take the events ({trouble}):"
                        " import again later, it goes on where this stopped"
                    ) from trouble
                self._sleep(max(wait_s, min(trouble.retry_after_s or 0.0, 60.0)))
        raise AssertionError("unreachable")


def _ending(attempt: Attempt) -> str:
    if attempt.ended is None:
        return "running"
    return "error" if isinstance(attempt.ended, wire.ErrorLine) else "done"
