"""What a Metrics server holds of a run, against what the run's attempts wrote into their files."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from infra.server.store import codec
from tests.support.gates import record
from tests.support.metrics_server import MetricsClient
from tests.support.strict_json import strict_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.support.metrics_server import MetricsServer
    from tests.support.runs import Outcome, SmallRun

__all__ = ["Held", "Lives", "Told", "held", "look"]


@dataclass(frozen=True, slots=True)
class Told:
    """A point or an annotation: who said it, when, at which step; `what` is a metric's name or a text."""

    session: str
    ts_ms: int
    step: int
    what: str
    metadata: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Held:
    """What a server holds of one experiment. `lifecycle` is (session, kind) in the order of arrival."""

    experiment_id: str
    status: str
    told: Counter[Told]
    lifecycle: list[tuple[str, str]]


@dataclass(slots=True)
class _Attempt:
    session: str
    number: int
    lines: list[dict[str, Any]]
    checkpoint: int | None
    """The step of its newest checkpoint; unset when it published none."""


@dataclass(slots=True)
class Lives:
    """The attempts of a run that died and came back, here or elsewhere. Note each one after its end."""

    attempts: list[_Attempt] = field(default_factory=list)
    read: dict[Path, int] = field(default_factory=dict)

    def note(self, run: SmallRun) -> None:
        """Keep what the attempt that just ended wrote, and what it published."""
        now = record(run)
        assert now is not None
        newest = now.newest
        published = newest is not None and newest.attempt == now.attempt.number
        self.attempts.append(
            _Attempt(
                now.attempt.session,
                now.attempt.number,
                self._new_lines(run.file),
                newest.step if newest and published else None,
            )
        )

    @property
    def sessions(self) -> list[str]:
        return [attempt.session for attempt in self.attempts]

    def written(self) -> Counter[Told]:
        """Everything that any attempt wrote."""
        return Counter(told for attempt in self.attempts for told in _told(attempt, attempt.lines))

    def up_to_the_checkpoints(self) -> Counter[Told]:
        """What each attempt wrote before its newest checkpoint, and all of the last one."""
        *dead, last = self.attempts
        parts = [_told(attempt, _before_checkpoint(attempt)) for attempt in dead]
        return Counter(told for part in [*parts, _told(last, last.lines)] for told in part)

    def assert_arrived(self, held: Held, unbroken: Outcome) -> None:
        """See that all is stored once, as it was written, and that the curve has no gap."""
        assert held.told - self.written() == Counter(), "stored twice, or not as it was written"
        assert self.up_to_the_checkpoints() - held.told == Counter(), "not stored"
        assert _curve(held) == unbroken.points

    def _new_lines(self, file: Path) -> list[dict[str, Any]]:
        data = file.read_bytes() if file.exists() else b""
        start, self.read[file] = self.read.get(file, 0), len(data)
        return strict_lines(data[start:])


def held(server: MetricsServer, slug: str) -> Held:
    """What the server holds now that nobody writes: by its database, and its API must show the same."""
    found = look(server, slug)
    assert found is not None
    client = MetricsClient(server.url, server.key)
    try:
        by_the_api = _by_the_api(client, found.experiment_id)
        assert client.record(found.experiment_id)["status"] == found.status
    finally:
        client.close()
    assert Counter({replace(told, session=""): n for told, n in found.told.items()}) == by_the_api
    return found


def look(server: MetricsServer, slug: str) -> Held | None:
    """Read the database, which knows the sessions that the API does not show; None before the first open."""
    database = sqlite3.connect(f"file:{server.data}/metrics.sqlite3?mode=ro", uri=True)
    try:
        database.execute("BEGIN")
        row = database.execute("SELECT id, uid, status FROM experiments WHERE slug = ?", [slug]).fetchone()
        if row is None:
            return None
        number, experiment_id, status = row
        blocks, senders, noted, lifecycle = (
            database.execute(q, [number]).fetchall() for q in (_BLOCKS, _SENDERS, _NOTES, _LIFECYCLE)
        )
    finally:
        database.close()
    told = _points(blocks, dict(senders))
    told += [_note(session, at_ms, text, json.loads(meta)) for session, at_ms, text, meta in noted]
    return Held(experiment_id, status, Counter(told), lifecycle)


def _points(blocks: Iterable[tuple[str, str, bytes]], senders: Mapping[int, str]) -> list[Told]:
    return [
        Told(senders[session], at_ms, step, name, _text(json.loads(metadata)), value)
        for name, metadata, data in blocks
        for points in [codec.decode(data)]
        for session, at_ms, step, value in zip(
            points.sessions.tolist(),
            points.timestamps_ms.tolist(),
            points.steps.tolist(),
            points.values.tolist(),
            strict=True,
        )
    ]


_BLOCKS = (
    "SELECT name, metadata, data FROM point_blocks JOIN series ON series.id = series_id"
    " WHERE series.experiment_id = ?"
)
_SENDERS = "SELECT id, sender FROM sessions WHERE experiment_id = ?"
_NOTES = (
    "SELECT sender, at_ms, text, meta FROM annotations JOIN sessions ON sessions.id = session_id"
    " WHERE annotations.experiment_id = ?"
)
_LIFECYCLE = (
    "SELECT sender, kind FROM lifecycle JOIN sessions ON sessions.id = session_id"
    " WHERE lifecycle.experiment_id = ? ORDER BY lifecycle.id"
)


def _by_the_api(client: MetricsClient, experiment_id: str) -> Counter[Told]:
    found: Counter[Told] = Counter()
    for (name, metadata), rows in client.points(experiment_id).items():
        found.update(Told("", at_ms, step, name, _text(dict(metadata)), value) for step, at_ms, value in rows)
    notes = client.data("query.annotations", experimentId=experiment_id)["annotations"]
    found.update(_note("", note["createdAtMs"], note["annotation"], note["meta"]) for note in notes)
    return found


def _note(session: str, at_ms: int, text: str, meta: Mapping[str, Any]) -> Told:
    """An annotation's step travels in its metadata."""
    return Told(
        session, at_ms, meta["step"], text, _text({k: v for k, v in meta.items() if k != "step"}), None
    )


def _text(metadata: Mapping[str, Any]) -> str:
    return json.dumps(metadata, sort_keys=True)


def _told(attempt: _Attempt, lines: Sequence[Mapping[str, Any]]) -> list[Told]:
    return [
        Told(
            attempt.session,
            line["ts_ms"],
            line["step"],
            line["name"] if line["kind"] == "metric" else line["annotation"],
            _text(line["metadata"]),
            line.get("value"),
        )
        for line in lines
        if line["kind"] in {"metric", "annotation"}
    ]


def _before_checkpoint(attempt: _Attempt) -> list[dict[str, Any]]:
    """The lines up to the boundary of its checkpoint: that it is published is said when it is."""
    step = attempt.checkpoint
    if step is None:
        return []
    before: list[dict[str, Any]] = []
    for line in attempt.lines:
        note = line.get("annotation", "")
        update = line["kind"] == "metric" and line["metadata"]["split"] == "train"
        if (update and line["step"] >= step) or note.startswith("failed: "):
            break
        if not (note.startswith("checkpoint ") and line["step"] == step):
            before.append(line)
    return before


def _curve(held: Held) -> dict[Any, float]:
    """Every point's value by the key of `runs.point_key`; its copies must agree. Rates are times."""
    values: dict[Any, float] = {}
    for told in held.told:
        if told.value is not None and not told.what.startswith("rate/"):
            key = (told.step, told.what, *sorted(json.loads(told.metadata).items()))
            assert values.setdefault(key, told.value) == told.value, key
    return values
