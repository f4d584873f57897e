"""Experiments that are deleted while something of them is on its way: ids of rows come back to others."""

import pytest

from infra.server.api.context import Principal
from infra.server.api.v1 import annotations
from infra.server.refusals import Refused
from infra.server.store import access, experiments, removal, series
from infra.server.store.store import Store
from tests.support.series import Run, small_blocks


@pytest.fixture
def store(file_address):
    store = Store(file_address)
    yield store
    store.close()


def delete(store, run):
    """Delete an experiment with everything that is left of it."""
    store.write_now(lambda connection: removal.begin(connection, run.experiment_id, now_ms=5))
    store.write_now(lambda _connection: store.ingest.forget_one(run.experiment_id))
    while store.write_now(removal.step):
        pass


def started(store):
    run = Run(store)
    run.open()
    return run


def fill(run, value):
    """Write a series of many blocks."""
    for first in range(0, 2_000, 20):
        run.write([(step, step, value) for step in range(first, first + 20)])


def test_a_reader_who_is_in_the_middle_never_reads_on_in_somebody_elses_points(store):
    with small_blocks():
        run = started(store)
        fill(run, 1.0)
        organisation = store.read_now(access.first_organisation)
        mine = run.series()
        reads = experiments.while_there(store.read_now, organisation.id, run.sessions[0].experiment_uid)
        frames = series.stream_each(reads, [mine], series.Order(), frame_points=32)
        assert {float(value) for value in next(frames)[1].values} == {1.0}
        delete(store, run)
        other = started(store)
        fill(other, 2.0)
        read: list[float] = []
        with pytest.raises(Refused, match="no experiment has the id"):
            read.extend(value for _, points in frames for value in points.values)
        assert 2.0 not in read


def test_a_token_looked_at_before_a_deletion_annotates_nothing_after_it(store):
    run = started(store)
    session = run.sessions[0]
    organisation = store.read_now(access.first_organisation)
    token = Principal(organisation, "token", None, session=session)
    delete(store, run)
    with pytest.raises(Refused) as refused:
        store.write_now(
            lambda connection: annotations._writing(connection, token, session.experiment_uid, now_ms=6)
        )
    assert refused.value.code == "experiment_not_found"
