"""Applying a batch of one experiment: each event once, in order, with an outcome of its own."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, or_, select, update

from infra.server.refusals import Refused
from infra.server.store import annotations as annotation_rows
from infra.server.store import lifecycle, senders, series, sessions
from infra.server.store.commands import Annotate, Change, Command, Record, annotation_uid
from infra.server.store.schema import applied_ids, experiments
from infra.server.store.sessions import Session, parse_message_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from infra.server.store.senders import Sender

__all__ = ["Ingest"]

_MAX_LIVE = 4096


@dataclass(slots=True)
class _Live:
    """What the writer remembers of an experiment that is written to."""

    series: dict[tuple[str, bytes], list[int]] = field(default_factory=dict)  # -> [id, num_points]
    senders: dict[str, Sender] = field(default_factory=dict)


class Ingest:
    """Lives in the writer's thread, which makes what it remembers true: nobody else writes."""

    def __init__(self) -> None:
        self._live: OrderedDict[int, _Live] = OrderedDict()

    def forget(self) -> None:
        """Drop what is remembered: a transaction was rolled back."""
        self._live.clear()

    def apply(
        self, connection: Connection, session: Session, commands: Sequence[Command], *, now_ms: int
    ) -> list[Refused | None]:
        """Apply commands in order; return for each None, also when it was applied before, or a refusal."""
        batch = _Batch(connection, session, self._of(session.experiment_id), now_ms)
        try:
            outcomes = batch.apply(commands)
            batch.write()
        except BaseException:
            self.forget()
            raise
        return outcomes

    def _of(self, experiment_id: int) -> _Live:
        live = self._live.setdefault(experiment_id, _Live())
        self._live.move_to_end(experiment_id)
        if len(self._live) > _MAX_LIVE:
            self._live.popitem(last=False)
        return live


@dataclass(slots=True)
class _Batch:
    """One batch while it is applied: what it adds is gathered, then written a table at a time."""

    connection: Connection
    session: Session
    live: _Live
    now_ms: int
    points: list[series.PointRow] = field(default_factory=list)
    grown: dict[int, list[int]] = field(default_factory=dict)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    senders: dict[str, Sender] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)
    new_ids: list[str] = field(default_factory=list)
    last_event_ms: int = 0

    def apply(self, commands: Sequence[Command]) -> list[Refused | None]:
        """Gather what the commands add."""
        self._load_applied(commands)
        return [self._one(command) for command in commands]

    def _one(self, command: Command) -> Refused | None:
        own = parse_message_id(command.message_id)
        try:
            if own is None:
                self._foreign(command)
            else:
                self._own(command, *own)
        except Refused as refusal:
            return refusal
        return None

    def _own(self, command: Command, name: str, sequence: int) -> None:
        """One of our sender's: a number within a session."""
        sender = self.live.senders.get(name)
        if sender is None:
            sender = senders.find_or_carry(self.connection, self.session, name, now_ms=self.now_ms)
            self.live.senders[name] = sender
        if sequence in sender.marks:
            return
        if isinstance(command, Change) and command.kind == "start":
            senders.adopt(self.connection, self.session, sender)
        self._do(command, sender.session_id)
        sender.marks.add(sequence)
        self.senders[name] = sender

    def _foreign(self, command: Command) -> None:
        """Anybody else's: an id drawn at random."""
        if command.message_id in self.applied:
            return
        self._do(command, self.session.id)
        self.applied.add(command.message_id)
        self.new_ids.append(command.message_id)

    def _do(self, command: Command, session_id: int) -> None:
        """Do what one command says. A refusal leaves no trace."""
        if isinstance(command, Record):
            at_ms = self._record(command, session_id)
        elif isinstance(command, Annotate):
            at_ms = self._annotate(command, session_id)
        elif isinstance(command, Change):
            at_ms = self.now_ms if command.at_ms is None else command.at_ms
            lifecycle.apply(
                self.connection, self.session.experiment_id, session_id, command, now_ms=self.now_ms
            )
        else:
            sessions.revoke(self.connection, self.session.id, now_ms=self.now_ms)
            return
        # A client whose clock is ahead does not keep a dead run fresh.
        self.last_event_ms = max(self.last_event_ms, min(at_ms, self.now_ms))

    def _record(self, command: Record, session_id: int) -> int:
        key = (command.partition.name, command.partition.hash)
        state = self.live.series.get(key)
        if state is None:
            found = series.find_or_create(self.connection, self.session.experiment_id, command.partition)
            state = self.live.series[key] = list(found)
        series_id, arrival = state
        at_ms = self.now_ms if command.timestamp_ms is None else command.timestamp_ms
        self.points.append((series_id, arrival, command.step, at_ms, command.value, session_id))
        state[1] = arrival + 1
        self.grown[series_id] = state
        return at_ms

    def _annotate(self, command: Annotate, session_id: int) -> int:
        at_ms = self.now_ms if command.at_ms is None else command.at_ms
        self.annotations.append(
            {
                "uid": annotation_uid(self.session.experiment_uid, command.message_id),
                "experiment_id": self.session.experiment_id,
                "session_id": session_id,
                "text": command.text,
                "meta": command.meta,
                "at_ms": at_ms,
            }
        )
        return at_ms

    def _load_applied(self, commands: Sequence[Command]) -> None:
        """Look up which of the batch's foreign ids were applied before."""
        foreign = [command.message_id for command in commands if parse_message_id(command.message_id) is None]
        if foreign:
            of_experiment = applied_ids.c.experiment_id == self.session.experiment_id
            rows = self.connection.execute(
                select(applied_ids.c.message_id).where(of_experiment, applied_ids.c.message_id.in_(foreign))
            )
            self.applied.update(row.message_id for row in rows)

    def write(self) -> None:
        """Write what was gathered, each table in one statement."""
        if self.points:
            grown = [(count, series_id) for series_id, (_, count) in self.grown.items()]
            series.append(self.connection, self.points, grown)
        if self.annotations:
            annotation_rows.append(self.connection, self.annotations)
        for sender in self.senders.values():
            senders.save(self.connection, sender)
        if self.new_ids:
            self.connection.exec_driver_sql(
                "INSERT INTO applied_ids (experiment_id, message_id, applied_ms) VALUES (?, ?, ?)",
                [(self.session.experiment_id, message_id, self.now_ms) for message_id in self.new_ids],
            )
        self._touch()

    def _touch(self) -> None:
        values: dict[str, Any] = {"last_heartbeat_ms": self.now_ms}
        if self.last_event_ms:
            last = experiments.c.last_event_ms
            earlier = or_(last.is_(None), last < self.last_event_ms)
            values["last_event_ms"] = case((earlier, self.last_event_ms), else_=last)
        if self.points:
            values["series_revision"] = experiments.c.series_revision + 1
        if self.annotations:
            values["experiment_revision"] = experiments.c.experiment_revision + 1
            values["updated_ms"] = self.now_ms
        self.connection.execute(
            update(experiments).where(experiments.c.id == self.session.experiment_id).values(**values)
        )
