"""Series written through the store's own path, and small sizes that make a test's few points many."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from infra.server import charts
from infra.server.limits import partition
from infra.server.store import access, blocks, experiments, series, sessions, streams, summaries
from infra.server.store.commands import Records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from infra.server.refusals import Refused
    from infra.server.store.series import Series
    from infra.server.store.sessions import Session
    from infra.server.store.store import Store

__all__ = ["Row", "Run", "small_blocks"]

Row = tuple[int, int, float]
"""Step, time, value."""


@contextmanager
def small_blocks() -> Iterator[None]:
    """Chunks of 32 points, folded by four, summarised by four; charts and streams hold nothing as small."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (blocks, "CHUNK_POINTS", 32),
            (blocks, "FAN_OUT", 4),
            (summaries, "GROUP_POINTS", 4),
            (streams, "CHUNK_POINTS", 32),
            (streams, "_HELD_POINTS", 48),
            (charts, "EXACT_POINTS", 0),
        ):
            patch.setattr(module, name, value)
        yield


class Run:
    """An experiment of its own in a store. Message ids are one sender's for each session."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sessions: list[Session] = []
        self._next: list[int] = []
        organisation = store.read_now(access.first_organisation) or store.write_now(
            lambda connection: access.create_organisation(connection, "org", now_ms=1)
        )
        self._organisation_id = organisation.id
        self._slug = uuid.uuid4().hex

    def open(self) -> int:
        """Open the experiment once more; return the place of the new session."""

        def work(connection):
            opened = experiments.open_experiment(
                connection,
                organisation_id=self._organisation_id,
                slug=self._slug,
                description="",
                meta="{}",
                now_ms=1,
            )
            found = sessions.find(connection, opened.token.secret, opened.uid, now_ms=2)
            assert found is not None
            return found[1]

        self.sessions.append(self.store.write_now(work))
        self._next.append(0)
        return len(self.sessions) - 1

    @property
    def experiment_id(self) -> int:
        """The row of the experiment."""
        return self.sessions[0].experiment_id

    def ids(self, count: int, *, session: int = 0) -> list[str]:
        """Return message ids never used before, which no sender of ours would make."""
        first = self._next[session]
        self._next[session] += count
        return [f"{session}-{number}" for number in range(first, first + count)]

    def write(
        self,
        rows: Sequence[Row],
        *,
        session: int = 0,
        name: str = "m",
        metadata: Mapping[str, str] | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> dict[int, Refused]:
        """Write points of one series in one batch; return the refusals."""
        steps, times, values = zip(*rows, strict=True)
        records = Records(
            message_ids=message_ids or self.ids(len(rows), session=session),
            partitions=[partition(name, tuple((metadata or {}).items()))],
            which=[0] * len(rows),
            steps=steps,
            timestamps_ms=times,
            values=values,
        )
        return self.apply(records, session=session)

    def apply(self, records: Records, *, session: int = 0) -> dict[int, Refused]:
        """Apply columns as one batch; return the refusals."""
        refused, _ = self.store.write_now(
            lambda connection: self.store.ingest.apply_columns(
                connection, self.sessions[session], records, [], now_ms=1_000
            )
        )
        return dict(refused)

    def series(self, name: str = "m") -> Series:
        """Return the one series of a metric."""
        (found,) = self.store.read_now(
            lambda connection: list(series.of_experiment(connection, self.experiment_id, [name]))
        )
        return found
