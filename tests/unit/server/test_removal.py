"""Removing what was deleted: a piece a commit, however it is scattered."""

import asyncio

import pytest
from sqlalchemy import event

from infra.server.api.remover import Remover
from infra.server.limits import partition
from infra.server.store import removal, series
from infra.server.store.commands import Records
from infra.server.store.store import Store
from tests.support.series import Run


@pytest.fixture
def store(file_address):
    store = Store(file_address)
    yield store
    store.close()


def filled(store, num_series):
    run = Run(store)
    run.open()
    for first in range(0, num_series, 1000):
        kinds = [partition("m", (("k", str(first + place)),)) for place in range(1000)]
        run.apply(Records(run.ids(1000), kinds, range(1000), [0] * 1000, [0] * 1000, [0.0] * 1000))
    return run


def left(store, run):
    return store.read_now(lambda connection: len(list(series.of_experiment(connection, run.experiment_id))))


def test_many_small_series_go_together_and_no_commit_grows_long(store):
    run, other = filled(store, 2000), filled(store, 1000)
    store.write_now(lambda connection: removal.begin(connection, run.experiment_id, now_ms=1))
    deleted: list[int] = []

    @event.listens_for(store.database.writes, "after_cursor_execute")
    def executed(_connection, cursor, statement, *_):
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    steps = 0
    while store.write_now(removal.step):
        steps += 1
    assert steps < 2000 / removal._BLOCKS + 2 * 2000 / removal._SERIES + 16
    assert max(deleted) <= removal._ROWS
    assert (left(store, run), left(store, other)) == (0, 1000)


def test_the_remover_outlives_whatever_one_piece_meets(store, monkeypatch):
    monkeypatch.setattr("infra.server.api.remover._WAIT_S", 0.01)
    run = filled(store, 1000)
    pieces, step = [], removal.step

    def fails_once(connection):
        pieces.append(connection)
        if len(pieces) == 2:
            raise AssertionError
        return step(connection)

    monkeypatch.setattr(removal, "step", fails_once)
    store.write_now(lambda connection: removal.begin(connection, run.experiment_id, now_ms=1))

    async def remove():
        async with Remover(store).kept(), asyncio.timeout(60):
            while left(store, run):  # noqa: ASYNC110 - nobody tells when it is done
                await asyncio.sleep(0.01)

    asyncio.run(remove())
