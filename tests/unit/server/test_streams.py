"""Streams: every point once, in the order that is asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from infra.server.refusals import Refused
from infra.server.store import blocks, experiments, removal, schema, series, streams
from infra.server.store.points import NO_STEP
from infra.server.store.store import Store
from infra.server.store.streams import Order, stream, stream_each
from tests.support.series import Run, small_blocks

pytestmark = pytest.mark.usefixtures("small")

batches = st.lists(
    st.tuples(
        st.integers(0, 2),  # the session
        st.lists(
            st.tuples(st.one_of(st.just(NO_STEP), st.integers(0, 60)), st.integers(0, 20)),
            min_size=1,
            max_size=40,
        ),
    ),
    min_size=1,
    max_size=8,
)
orders = st.tuples(st.sampled_from(["step", "timestamp"]), st.booleans(), st.booleans())


@pytest.fixture(scope="module")
def small():
    with small_blocks():
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("streams") / "metrics.sqlite3")
    yield store
    store.close()


def written(store, table, name="m"):
    """A run with what each batch says, and its rows in order of arrival: (step, time, value, session)."""
    run = Run(store)
    for _ in range(3):
        run.open()
    rows: list[tuple[int, int, float, int]] = []
    for session, batch in table:
        points = [(step, at_ms, len(rows) + place + 0.5) for place, (step, at_ms) in enumerate(batch)]
        run.write(points, session=session, name=name)
        rows += [(*point, run.sessions[session].id) for point in points]
    return run, rows


def modelled(rows, order, ranks):
    """What a stream gives, by sorting everything."""
    if order.newest is not None:
        kept: dict[object, int] = {}
        for arrival, (step, _, _, session) in enumerate(rows):
            key = (step, arrival) if step == NO_STEP else step
            if key not in kept or ranks[session] >= ranks[rows[kept[key]][3]]:
                kept[key] = arrival
        arrivals = sorted(kept.values())
    else:
        arrivals = list(range(len(rows)))
    axis = 0 if order.axis == "step" else 1
    arrivals.sort(key=lambda arrival: (rows[arrival][axis], arrival), reverse=order.descending)
    return [rows[arrival] for arrival in arrivals]


def rows_of(frames):
    return [
        row
        for frame in frames
        for row in zip(
            frame.steps.tolist(),
            frame.timestamps_ms.tolist(),
            frame.values.tolist(),
            frame.sessions.tolist(),
            strict=True,
        )
    ]


@settings(max_examples=80, deadline=None)
@given(batches, orders, st.permutations([0, 1, 2]), st.integers(1, 50))
def test_a_stream_gives_what_sorting_everything_gives(store, table, asked, began, frame_points):
    run, rows = written(store, table)
    ranks = {run.sessions[place].id: rank for rank, place in enumerate(began)}
    axis, descending, newest = asked
    order = Order(axis, descending=descending, newest=ranks if newest else None)
    frames = list(stream(store.read_now, run.series(), order, frame_points=frame_points))
    assert all(1 <= len(frame) <= frame_points for frame in frames)
    assert rows_of(frames) == modelled(rows, order, ranks)
    (one,) = {found.id for found, _ in stream_each(store.read_now, [run.series()], order)}
    each = stream_each(store.read_now, [run.series()], order, frame_points=frame_points)
    assert one == run.series().id
    assert rows_of(frame for _, frame in each) == modelled(rows, order, ranks)


@pytest.fixture
def largest(monkeypatch):
    """How many points were sorted at once or kept for later, at most."""
    seen = [0]
    sort = streams._sorted

    def watched(part, order):
        seen.append(len(part.arrivals))
        return sort(part, order)

    put_back = streams._Held._put_back

    def watched_too(self, part):
        put_back(self, part)
        seen.append(self._num_points)
        if self.limit is not None:
            (kept,) = self._parts
            assert kept.arrivals.base is None, "what was let go of is kept by a view"
            assert kept.points.values.base is None

    monkeypatch.setattr(streams._Held, "_put_back", watched_too)
    monkeypatch.setattr(streams, "_sorted", watched)
    return lambda: max(seen)


def test_a_series_in_order_is_held_a_chunk_at_a_time(store, largest):
    run, rows = written(
        store, [(0, [(step, step) for step in range(first, first + 30)]) for first in range(0, 900, 30)]
    )
    assert len(rows_of(stream(store.read_now, run.series(), Order()))) == len(rows)
    assert largest() <= 2 * blocks.CHUNK_POINTS


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("steps", ["in no order", "none", "one", "one or none"])
def test_of_a_series_in_whatever_order_no_more_is_held_than_may_be(store, largest, steps, descending, newest):
    chance = np.random.default_rng(0)
    drawn = {
        "in no order": chance.permutation(3_000) // 2,  # most of them twice
        "none": np.full(3_000, NO_STEP),
        "one": np.zeros(3_000, dtype=int),
        "one or none": chance.integers(NO_STEP, 1, 3_000),
    }[steps].tolist()
    table = [
        (first // 30 % 3, [(step, 0) for step in drawn[first : first + 30]]) for first in range(0, 3_000, 30)
    ]
    run, rows = written(store, table)
    ranks = {session.id: rank for rank, session in enumerate(run.sessions)}
    order = Order("step", descending=descending, newest=ranks if newest else None)
    assert rows_of(stream(store.read_now, run.series(), order)) == modelled(rows, order, ranks)
    assert largest() <= streams._HELD_POINTS + 2 * blocks.CHUNK_POINTS


def test_points_that_arrive_while_a_stream_is_read_are_left_out_and_folds_do_not_disturb_it(store):
    run, rows = written(store, [(0, [(step, step)]) for step in range(30)])
    frames = stream(store.read_now, run.series(), Order(), frame_points=4)
    got = [next(frames)]
    for step in range(100, 200):
        run.write([(step, step, 0.0)])
    got += list(frames)
    assert rows_of(got) == rows


def test_an_empty_series_is_no_frames(store):
    run, _ = written(store, [(0, [(1, 1)])])
    one = run.series()
    empty = type(one)(one.id + 10_000, "m", {}, 0)
    assert list(stream(store.read_now, empty, Order())) == []
    assert list(stream_each(store.read_now, [empty], Order())) == []


def test_every_database_keeps_the_same_points(address):
    store = Store(address)
    run = Run(store)
    run.open()
    values = [-0.0, 5e-324, -1.7976931348623157e308, 0.1]
    rows = [(step, 2**53 - 1 - step, values[step % 4]) for step in range(200)]
    for first in range(0, 200, 7):
        run.write(rows[first : first + 7])
    frames = list(stream(store.read_now, run.series(), Order()))
    got = np.concatenate([frame.values for frame in frames])
    assert got.tobytes() == np.array([value for _, _, value in rows]).tobytes()
    assert rows_of(frames) == [(*row, run.sessions[0].id) for row in rows]
    last = store.read_now(lambda connection: series.last_points(connection, run.experiment_id, limit=1))
    assert (last[0]["step"], last[0]["value"]) == (199, 0.1)
    assert len(store.read_now(lambda connection: blocks.layout(connection, run.series().id))) < 20
    store.close()


@pytest.mark.parametrize("frame_points", [4, 4096], ids=["long", "small"])
def test_a_stream_of_what_is_deleted_meanwhile_is_refused_and_gives_nothing_of_anybody_else(
    address, frame_points
):
    store = Store(address)
    run, rows = written(store, [(0, [(step, step) for step in range(32)])] * 4)
    run.write([(0, 0, 0.0)], name="n")
    with store.database.read() as connection:
        found = list(series.of_experiment(connection, run.experiment_id))
    with store.database.read() as connection:
        one = connection.execute(select(schema.experiments)).one()
    reads = experiments.while_there(store.read_now, one.organisation_id, one.uid)
    frames = stream_each(reads, found, Order(), frame_points=frame_points)
    got = [] if frame_points > len(rows) else [next(frames)]
    store.write_now(lambda connection: removal.begin(connection, run.experiment_id, now_ms=1))
    while store.write_now(removal.step):
        pass
    for _ in range(4):
        other, _ = written(store, [(0, [(step, -1) for step in range(32)])] * 8)
        assert other.experiment_id > run.experiment_id
        assert other.series().id > found[-1].id
    with pytest.raises(Refused, match="no experiment"):
        got += frames
    assert all((points.timestamps_ms >= 0).all() for _, points in got)
    store.close()
