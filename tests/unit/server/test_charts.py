"""Curves: one value a step, the newest attempt's; spikes survive any width."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from infra.server import charts
from infra.server.charts import PointCache, buckets, newest_copies
from infra.server.store.series import Points, Series

NO_CONNECTION: Any = None  # reading is replaced

rows = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 9), st.floats(-1e6, 1e6), st.integers(1, 3)), max_size=80
)


def points(table):
    columns = list(zip(*table, strict=True)) if table else [(), (), (), ()]
    return Points(
        np.array(columns[0], dtype=np.int64),
        np.array(columns[1], dtype=np.int64),
        np.array(columns[2], dtype=np.float64),
        np.array(columns[3], dtype=np.int64),
    )


@given(rows, st.permutations([1, 2, 3]))
def test_a_step_has_the_last_copy_of_its_newest_session(table, order):
    ranks = {session: rank for rank, session in enumerate(order)}
    wanted: dict[int, tuple[int, float]] = {}
    for step, _, value, session in table:
        if step not in wanted or ranks[session] >= wanted[step][0]:
            wanted[step] = (ranks[session], value)
    curve = newest_copies(points(table), ranks)
    assert dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) == {
        step: value for step, (_, value) in wanted.items()
    }
    assert curve.steps.tolist() == sorted(wanted)


def test_a_killed_and_resumed_run_is_one_curve():
    first = [(step, 0, float(step), 1) for step in range(13)]
    second = [(step, 0, step + 0.5, 2) for step in range(10, 16)]
    curve = newest_copies(points(first + second), {1: 0, 2: 1})
    assert curve.values.tolist() == [*map(float, range(10)), 10.5, 11.5, 12.5, 13.5, 14.5, 15.5]


def test_what_a_resume_delivers_for_the_killed_attempt_does_not_hide_its_own():
    """The older attempt's copy arrives last here, as after a resume on another machine."""
    table = [(5, 0, 2.0, 7), (5, 0, 1.0, 9)]
    assert newest_copies(points(table), {9: 0, 7: 1}).values.tolist() == [2.0]


@given(rows.filter(bool), st.integers(1, 40))
def test_buckets_keep_every_extreme_and_the_end(table, width):
    curve = newest_copies(points(table), {1: 0, 2: 1, 3: 2})
    drawn = buckets(curve, width)
    assert len({len(drawn[name]) for name in ("step", "min", "max", "last")}) == 1
    assert len(drawn["step"]) <= width or len(curve.steps) <= width
    assert drawn["min"].min() == curve.values.min()
    assert drawn["max"].max() == curve.values.max()
    assert (drawn["step"][-1], drawn["last"][-1]) == (curve.steps[-1], curve.values[-1])
    assert (np.diff(drawn["step"]) > 0).all()
    assert ((drawn["min"] <= drawn["last"]) & (drawn["last"] <= drawn["max"])).all()


def test_buckets_hold_at_the_largest_steps():
    steps = np.array([0, 2**53 - 3, 2**53 - 2], dtype=np.int64)
    curve = Points(steps, steps, np.array([1.0, 2.0, 3.0]), steps)
    assert buckets(curve, 2)["step"].tolist() == [0, 2**53 - 2]


def test_points_read_before_are_not_read_again(monkeypatch):
    table = [(step, step, float(step), 1) for step in range(10)]
    read = []

    def points_of(_connection, _series_id, *, since):
        read.append(since)
        return points(table[since:])

    monkeypatch.setattr("infra.server.store.series.points_of", points_of)
    cache = PointCache()

    def ask(num_points):
        return cache.read(NO_CONNECTION, Series(1, "loss", {}, num_points)).steps.tolist()

    assert ask(10) == list(range(10))
    assert ask(10) == list(range(10))
    table += [(step, step, float(step), 1) for step in range(10, 12)]
    assert ask(12) == list(range(12))
    assert read == [0, 10]


def test_the_cache_drops_what_was_asked_for_longest_ago(monkeypatch):
    read = []

    def points_of(_connection, series_id, *, since):
        read.append(series_id)
        return points([(0, 0, 0.0, 1)] * (6 - since))

    monkeypatch.setattr("infra.server.store.series.points_of", points_of)
    cache = PointCache(max_points=12)
    for series_id in (1, 2, 3, 2, 3, 1):
        cache.read(NO_CONNECTION, Series(series_id, "loss", {}, 6))
    assert read == [1, 2, 3, 1]


def test_the_page_needs_nothing_from_elsewhere():
    web = Path(charts.__file__).parent / "web"
    for file in [*web.glob("templates/*"), *web.glob("static/*")]:
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, file
        assert "https:" not in text, file
        assert "style=" not in text, f"{file}: the content security policy refuses inline styles"
