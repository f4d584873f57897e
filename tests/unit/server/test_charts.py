"""Curves: one value a step, the newest attempt's; spikes survive any width."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.server import charts
from infra.server.charts import Window, buckets, load
from infra.server.store import blocks
from infra.server.store.points import NO_STEP, newest_copies, points
from infra.server.store.store import Store
from runtime.events.limits import MAX_STEP
from tests.support.series import Run, small_blocks

rows = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 9), st.floats(-1e6, 1e6), st.integers(1, 3)), max_size=80
)
# Long climbing stretches with a resume here and there, as runs make them, and batches in any order.
stretches = st.builds(
    lambda first, count, by: [first + at * by for at in range(count)],
    st.integers(0, 300),
    st.integers(1, 60),
    st.integers(1, 9),
)
batches = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(stretches, stretches, st.lists(st.integers(NO_STEP, 400), min_size=1, max_size=30)),
    ),
    min_size=1,
    max_size=7,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("charts") / "metrics.sqlite3")
    yield store
    store.close()


@pytest.fixture
def small():
    with small_blocks():
        yield


def columns(table):
    return points(*(zip(*table, strict=True) if table else ((), (), (), ())))


@given(rows, st.permutations([1, 2, 3]))
def test_a_step_has_the_last_copy_of_its_newest_session(table, order):
    ranks = {session: rank for rank, session in enumerate(order)}
    wanted: dict[int, tuple[int, float]] = {}
    for step, _, value, session in table:
        if step not in wanted or ranks[session] >= wanted[step][0]:
            wanted[step] = (ranks[session], value)
    made = columns(table)
    curve = made.take(newest_copies(made, ranks))
    assert dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) == {
        step: value for step, (_, value) in wanted.items()
    }
    assert curve.steps.tolist() == sorted(wanted)


def test_a_killed_and_resumed_run_is_one_curve(store):
    run = resumed(store)
    assert drawn(store, run, width=100)["last"].tolist() == [*map(float, range(10)), *np.arange(10, 16) + 0.5]


def resumed(store):
    run = Run(store)
    run.open()
    run.write([(step, 0, float(step)) for step in range(13)])
    run.open()
    run.write([(step, 0, step + 0.5) for step in range(10, 16)], session=1)
    return run


def drawn(store, run, *, width, ranks=None, window=None, of=None):
    ranks = {one.id: rank for rank, one in enumerate(run.sessions)} if ranks is None else ranks

    def work(connection):
        return load(connection, run.series(), window or Window()).curve(ranks, width=width, of=of)

    return buckets(store.read_now(work), width)


def test_what_a_resume_delivers_for_the_killed_attempt_does_not_hide_its_own():
    """The older attempt's copy arrives last here, as after a resume on another machine."""
    made = columns([(5, 0, 2.0, 7), (5, 0, 1.0, 9)])
    assert made.values[newest_copies(made, {9: 0, 7: 1})].tolist() == [2.0]


def test_each_attempt_has_its_own_curve(store):
    run = resumed(store)
    first = drawn(store, run, width=100, ranks={}, of=[run.sessions[0].id])
    assert first["last"].tolist() == [*map(float, range(13))]
    found = store.read_now(lambda connection: load(connection, run.series(), Window()).sessions())
    assert found == {one.id for one in run.sessions}


looks = st.tuples(
    st.integers(1, 40),  # the width
    st.tuples(st.integers(0, 200), st.integers(0, 900)),  # the window
    st.one_of(st.none(), st.sets(st.integers(0, 2), min_size=1)),  # whose points
)


@settings(max_examples=100, deadline=None)
@given(batches, st.permutations([0, 1, 2]), looks)
def test_a_chart_of_summaries_says_what_the_points_say(store, table, began, look):
    """Each bucket holds exactly the points between the bucket before it and its own last step."""
    width, edges, attempt = look
    with small_blocks():
        run = Run(store)
        for _ in range(3):
            run.open()
        rng, arrived = np.random.default_rng(len(table)), []
        for session, steps in table:
            batch = [
                (step, 0, float(value))
                for step, value in zip(steps, rng.normal(size=len(steps)), strict=True)
            ]
            run.write(batch, session=session)
            arrived += [(*row, run.sessions[session].id) for row in batch]
        ranks = {run.sessions[place].id: rank for rank, place in enumerate(began)}
        window = Window(edges[0], edges[0] + edges[1])
        of = None if attempt is None else [run.sessions[place].id for place in attempt]
        got = drawn(store, run, width=width, ranks=ranks, window=window, of=of)
        found = store.read_now(lambda connection: load(connection, run.series(), window).sessions())
    wanted = modelled(arrived, ranks, window, of)
    lasts = got["step"].tolist()
    assert lasts == sorted(set(lasts))
    assert len(lasts) <= max(width, 1)
    assert (lasts[-1:] or [None]) == [max(wanted, default=None)]
    for place, last in enumerate(lasts):
        before = lasts[place - 1] if place else -1
        inside = [value for step, value in wanted.items() if before < step <= last]
        assert got["min"][place] == min(inside)
        assert got["max"][place] == max(inside)
        assert got["last"][place] == wanted[last]
    inside_window = {session for step, _, _, session in arrived if window.first <= step <= window.last}
    assert inside_window <= found <= {one.id for one in run.sessions}


def modelled(arrived, ranks, window, of):
    kept: dict[int, tuple[int, float]] = {}
    for step, _, value, session in arrived:
        if step == NO_STEP or not window.first <= step <= window.last or (of and session not in of):
            continue
        if step not in kept or ranks[session] >= kept[step][0]:
            kept[step] = (ranks[session], value)
    return {step: value for step, (_, value) in kept.items()}


def test_a_long_series_is_drawn_without_unpacking_it(store, small, monkeypatch):
    run = Run(store)
    run.open()
    for first in range(0, 4_000, 40):
        run.write([(step, 0, 1e9 if step == 1_777 else float(step)) for step in range(first, first + 40)])
    unpacked = []
    read = blocks.read

    def watched(connection, series_id, first, end):
        unpacked.append(end - first)
        return read(connection, series_id, first, end)

    monkeypatch.setattr(blocks, "read", watched)
    got = drawn(store, run, width=50)
    assert len(got["step"]) == 50
    assert got["max"].max() == 1e9
    assert sum(unpacked) <= 2 * blocks.CHUNK_POINTS, "only the tail, which has no summary yet"


def test_one_sparse_group_is_not_wider_than_a_pixel(store, small):
    """Its 4 points lie in pixels of their own, so they are drawn one by one."""
    run = Run(store)
    run.open()
    run.write([(step, 0, 0.0) for step in range(64)])
    run.write([(1_000 * step, 0, 0.0) for step in range(1, 65)])
    got = drawn(store, run, width=64)
    assert got["step"].tolist() == [63, *range(1_000, 64_001, 1_000)][-len(got["step"]) :]
    assert len(got["step"]) >= 63


def test_buckets_hold_at_the_largest_steps(store):
    run = Run(store)
    run.open()
    run.write([(step, 0, float(place)) for place, step in enumerate([0, MAX_STEP - 1, MAX_STEP])])
    assert drawn(store, run, width=2)["step"].tolist() == [0, MAX_STEP]


def test_the_page_needs_nothing_from_elsewhere():
    web = Path(charts.__file__).parent / "web"
    for file in [*web.rglob("*.html"), *web.rglob("*.css"), *web.rglob("*.js"), *web.rglob("*.svg")]:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        text = text.replace("/*! https://github.com/leeoniya/uPlot ", "")  # a comment
        assert "http:" not in text, file
        assert "https:" not in text, file
        assert "style=" not in text, f"{file}: the content security policy refuses inline styles"
