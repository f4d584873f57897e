"""Applying a batch of one experiment: each event once, with an outcome of its own.

Points come and go as columns: what costs per point is a few list operations, the rest is per series.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from infra.server.refusals import Refused
from infra.server.store import annotations as annotation_rows
from infra.server.store import lifecycle, senders, sessions, sql
from infra.server.store.applied import Applied
from infra.server.store.claims import Claim, claim
from infra.server.store.commands import Annotate, Change, Other, Record, Records, annotation_uid
from infra.server.store.counters import Counters
from infra.server.store.growth import Growth
from infra.server.store.sessions import parse_message_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from infra.server.store.commands import Command
    from infra.server.store.senders import Sender
    from infra.server.store.sessions import Session

__all__ = ["Ingest"]

_MAX_REMEMBERED = 200_000
"""Series, senders and holes of all experiments together; each takes about half a KiB."""


@dataclass(slots=True)
class _Live:
    """What the writer remembers of an experiment that is written to. `size` is how much it was lately."""

    growth: Growth
    senders: dict[str, Sender] = field(default_factory=dict)
    size: int = 0

    def weigh(self) -> int:
        """Return how much more it has become since the last time."""
        before = self.size
        self.size = 4 + self.growth.num_series
        self.size += sum(4 + sender.marks.num_holes for sender in self.senders.values())
        return self.size - before


class Ingest:
    """Lives in the writer's thread, which makes what it remembers true: nobody else writes."""

    def __init__(self, counters: Counters | None = None) -> None:
        self.counters = Counters() if counters is None else counters
        self.applied = Applied()
        self._live: OrderedDict[int, _Live] = OrderedDict()
        self._num_remembered = 0

    def forget(self) -> None:
        """Drop what is remembered: a transaction was rolled back, or somebody else has written."""
        self._live.clear()
        self._num_remembered = 0
        self.applied.forget()

    def forget_one(self, experiment_id: int) -> None:
        """Drop what is remembered of one experiment: a batch of it was undone, or it was deleted."""
        live = self._live.pop(experiment_id, None)
        if live is not None:
            self._num_remembered -= live.size
        self.applied.forget_one(experiment_id)

    def apply(
        self, connection: Connection, session: Session, commands: Sequence[Command], *, now_ms: int
    ) -> list[Refused | None]:
        """Apply commands; return for each None, also when it was applied before, or a refusal."""
        records = [place for place, command in enumerate(commands) if isinstance(command, Record)]
        others = [place for place, command in enumerate(commands) if not isinstance(command, Record)]
        refused, refused_others = self.apply_columns(
            connection,
            session,
            Records.of([command for command in commands if isinstance(command, Record)]),
            [command for command in commands if not isinstance(command, Record)],
            now_ms=now_ms,
        )
        outcomes: list[Refused | None] = [None] * len(commands)
        for places, of_them in ((records, refused), (others, refused_others)):
            for place, refusal in of_them.items():
                outcomes[places[place]] = refusal
        return outcomes

    def apply_columns(
        self,
        connection: Connection,
        session: Session,
        records: Records,
        others: Sequence[Other],
        *,
        now_ms: int,
    ) -> tuple[dict[int, Refused], dict[int, Refused]]:
        """Apply the points of a batch and then whatever else it holds, each in order.

        It is the last thing that a unit of work does: were that to fail later, what is remembered would be
        wrong. Returns the refusals of either by place; what has none was applied, now or before.
        """
        live = self._of(session.experiment_id)
        batch = _Batch(connection, session, live, self.applied, self.counters, now_ms)
        try:
            refused = batch.record(records) if len(records) else {}
            refused_others = batch.do(others) if others else {}
            batch.write()
        except BaseException:
            self.forget_one(session.experiment_id)
            raise
        self._bound(live)
        return refused, refused_others

    def _of(self, experiment_id: int) -> _Live:
        live = self._live.get(experiment_id)
        if live is None:
            live = self._live[experiment_id] = _Live(Growth(experiment_id))
        self._live.move_to_end(experiment_id)
        return live

    def _bound(self, live: _Live) -> None:
        """Drop what was not written to for longest, where it is too much; it is read again when needed."""
        self._num_remembered += live.weigh()
        while self._num_remembered > _MAX_REMEMBERED:
            self._num_remembered -= self._live.popitem(last=False)[1].size


@dataclass(slots=True)
class _Batch:
    """One batch while it is applied: what it adds is gathered, then written a table at a time."""

    connection: Connection
    session: Session
    live: _Live
    applied: Applied
    counters: Counters
    now_ms: int
    num_points: int = 0
    annotations: list[dict[str, Any]] = field(default_factory=list)
    senders: dict[str, Sender] = field(default_factory=dict)
    new_ids: list[str] = field(default_factory=list)
    ended: bool = False
    last_event_ms: int = 0

    def record(self, records: Records) -> dict[int, Refused]:
        """Store the points that were not stored before; return the refusals by place."""
        claimed = claim(self.known, self.sender, records.message_ids)
        refused = self._refused(records, claimed)
        if refused:
            claimed = claimed.without(refused)
            self.counters.partitions_refused += len(refused)
        self.counters.repeated += len(records) - len(claimed) - len(refused)
        if len(claimed):
            self.new_ids += claimed.mark(records.message_ids)
            latest_ms = self.live.growth.gather(records, claimed, self.session.id, now_ms=self.now_ms)
            # A client whose clock is ahead does not keep a dead run fresh.
            self.last_event_ms = min(latest_ms, self.now_ms)
            self.num_points = len(claimed)
            self.counters.points += len(claimed)
        return refused

    def _refused(self, records: Records, claimed: Claim) -> dict[int, Refused]:
        """Find or make the series of what is new; return the refusals by place."""
        wanted = set(records.which) if claimed.all else {records.which[place] for place in claimed.places}
        refused = self.live.growth.open(self.connection, records.partitions, sorted(wanted))
        if not refused:
            return {}
        # With their copies, which were taken for what is applied already.
        of_ids = {
            records.message_ids[place]: refused[records.which[place]]
            for place in claimed.places
            if records.which[place] in refused
        }
        return {
            place: of_ids[message_id]
            for place, message_id in enumerate(records.message_ids)
            if message_id in of_ids
        }

    def do(self, others: Sequence[Other]) -> dict[int, Refused]:
        """Do what the rest of the batch says, in order; return the refusals by place."""
        foreign = [one.message_id for one in others if parse_message_id(one.message_id) is None]
        known = self.known(foreign) if foreign else set()
        known.update(self.new_ids)
        refused = {}
        for place, one in enumerate(others):
            try:
                self._once(one, known)
            except Refused as refusal:
                refused[place] = refusal
        return refused

    def _once(self, command: Other, known: set[str]) -> None:
        own = parse_message_id(command.message_id)
        if own is None:
            if command.message_id not in known:
                self._do(command, self.session.id)
                known.add(command.message_id)
                self.new_ids.append(command.message_id)
            return
        sender = self.sender(own[0])
        if own[1] in sender.marks:
            return
        if isinstance(command, Change) and command.kind == "start":
            senders.adopt(self.connection, self.session, sender)
        self._do(command, sender.session_id)
        sender.marks.add(own[1])

    def _do(self, command: Other, session_id: int) -> None:
        """Do what one command says. A refusal leaves no trace."""
        if not isinstance(command, Annotate | Change):
            sessions.revoke(self.connection, self.session.id, now_ms=self.now_ms)
            return
        at_ms = self.now_ms if command.at_ms is None else command.at_ms
        if isinstance(command, Annotate):
            self._annotate(command, session_id, at_ms)
        else:
            lifecycle.apply(
                self.connection, self.session.experiment_id, session_id, command, now_ms=self.now_ms
            )
            self.ended = command.kind != "start"
        self.last_event_ms = max(self.last_event_ms, min(at_ms, self.now_ms))

    def known(self, message_ids: Sequence[str]) -> set[str]:
        """Return which of clients' random ids were applied before this batch."""
        return self.applied.known(
            self.connection, self.session.experiment_id, message_ids, now_ms=self.now_ms
        )

    def sender(self, name: str) -> Sender:
        """Return one of our senders, whose marks this batch will change."""
        sender = self.live.senders.get(name)
        if sender is None:
            sender = senders.find_or_carry(self.connection, self.session, name, now_ms=self.now_ms)
            self.live.senders[name] = sender
        self.senders[name] = sender
        return sender

    def _annotate(self, command: Annotate, session_id: int, at_ms: int) -> None:
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

    def write(self) -> None:
        """Write what was gathered, each table in one statement."""
        if self.num_points:
            self.live.growth.write(self.connection)
        if self.ended:
            self.live.growth.settle(self.connection)
        if self.annotations:
            annotation_rows.append(self.connection, self.annotations)
        for sender in self.senders.values():
            senders.save(self.connection, sender)
        if self.new_ids:
            self.applied.remember(
                self.connection, self.session.experiment_id, self.new_ids, now_ms=self.now_ms
            )
        self._touch()

    def _touch(self) -> None:
        changes, values = ["last_heartbeat_ms = ?"], [self.now_ms]
        if self.last_event_ms:
            changes.append("last_event_ms = CASE WHEN last_event_ms > ? THEN last_event_ms ELSE ? END")
            values += [self.last_event_ms, self.last_event_ms]
        if self.num_points:
            changes.append("series_revision = series_revision + 1")
        if self.annotations:
            changes += ["experiment_revision = experiment_revision + 1", "updated_ms = ?"]
            values.append(self.now_ms)
        statement = (
            f"UPDATE experiments SET {', '.join(changes)}"  # noqa: S608 - our own words
            " WHERE id = ? AND uid = ? AND deleted_ms IS NULL"
        )
        which = (self.session.experiment_id, self.session.experiment_uid)
        touched = sql.run(self.connection, statement, (*values, *which))
        if touched.rowcount == 0:
            raise Refused("unauthorized", "the experiment was deleted while this was on its way")
