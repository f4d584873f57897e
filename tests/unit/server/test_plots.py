"""A run's points as the lines of a panel."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.server.plots import Window, gather, plot
from runtime.telemetry.layout import Panel


def drawn(points, *keys, width=1000, attempts=(), window=None, x=None, scale="linear"):
    """The lines of a panel over points, as lists."""
    panel = Panel(title="", x=x, y=keys or ("y",), scale=scale, min=None, max=None, rule=None, wide=False)
    columns = gather([points], {*panel.y, *([x] if x else [])}, attempts)
    lines = plot(columns, panel, width=width, window=window)["lines"]
    return [
        {name: getattr(value, "tolist", lambda v=value: v)() for name, value in one.items()} for one in lines
    ]


def values(line):
    return list(zip(line["x"], line["last"], strict=True))


def test_a_point_without_the_panels_x_is_left_off_and_counted():
    (line,) = drawn([{"step": 1, "y": 1.0}, {"y": 2.0}, {"step": 3, "y": 3.0}], x="step")
    assert values(line) == [(1, 1), (3, 3)]
    assert (line["points"], line["without_x"]) == (3, 1)


def test_the_place_in_the_run_counts_every_point():
    (line,) = drawn([{"y": 1.0}, {"z": 9}, {}, {"y": 4.0}])
    assert values(line) == [(1, 1), (4, 4)]


def test_a_key_that_was_never_written_has_a_line_without_points():
    line, never = drawn([{"y": 1.0}], "y", "never")
    assert line["points"] == 1
    assert (never["points"], never["x"], never["breaks"]) == (0, [], [])


def test_a_logarithmic_axis_hides_what_is_not_positive_counts_it_and_breaks_the_line_there():
    points = [{"step": at, "y": y} for at, y in enumerate([1.0, 0.0, 2.0, 3.0, -1.0, -0.5, 4.0])]
    (line,) = drawn(points, x="step", scale="log")
    assert values(line) == [(0, 1), (2, 2), (3, 3), (6, 4)]
    assert (line["hidden"], line["breaks"]) == (3, [1, 3])
    (linear,) = drawn(points, x="step")
    assert (linear["hidden"], linear["breaks"], len(linear["x"])) == (0, [], 7)


def test_where_a_nan_was_written_the_line_is_broken():
    points = [{"step": at, "y": 1.0, "lr": 1} for at in range(10)]
    del points[4]["y"]
    y, lr = drawn(points, "y", "lr", x="step")
    assert (y["breaks"], lr["breaks"]) == ([4], [])


def test_a_lone_point_between_gaps_is_kept():
    points = [{"step": at, "y": float(at)} for at in range(20)]
    del points[4]["y"], points[6]["y"]
    (line,) = drawn(points, x="step")
    assert line["breaks"] == [4, 5]
    assert line["x"][4] == 5


def test_an_evaluation_every_tenth_step_is_one_line_and_breaks_no_other():
    points = []
    for at in range(50):
        points.append({"step": at, "y": 1.0})
        if at % 10 == 0:
            points.append({"step": at, "eval_y": 2.0})
    y, evaluated = drawn(
        [{k: v for k, v in p.items() if k != "eval"} for p in points], "y", "eval_y", x="step"
    )
    assert (len(y["x"]), y["breaks"]) == (50, [])
    assert (len(evaluated["x"]), evaluated["breaks"]) == (5, [])


def test_a_key_in_every_tenth_line_is_one_line():
    points = [{"step": at, "y": 1.0, **({"lr": 0.1} if at % 10 == 0 else {})} for at in range(50)]
    (line,) = drawn(points, "lr", x="step")
    assert (len(line["x"]), line["breaks"]) == (5, [])


def test_the_newest_attempts_value_stands_where_it_repeats_an_x():
    points = [{"step": at, "y": 0.0} for at in range(6)] + [{"step": at, "y": 1.0} for at in range(3, 5)]
    (line,) = drawn(points, x="step", attempts=[(1, 0), (2, 6)])
    assert values(line) == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 0)]
    (both,) = drawn(points, x="step", attempts=[(1, 0)])
    assert len(both["x"]) == 8


def test_a_nan_that_the_next_attempt_mended_is_no_gap():
    points = [{"step": 1, "y": 0.0}, {"step": 2}, {"step": 3, "y": 0.0}, {"step": 2, "y": 5.0}]
    (line,) = drawn(points, x="step", attempts=[(1, 0), (2, 3)])
    assert (values(line), line["breaks"]) == ([(1, 0), (2, 5), (3, 0)], [])


def test_where_a_later_attempt_begins_is_said():
    points = [{"step": 1, "y": 0}, {"step": 2, "y": 0}, {"z": 1}, {"step": 2, "y": 0}, {"step": 3, "y": 0}]
    columns = gather([points], {"y", "step"}, [(1, 0), (2, 2), (3, 2), (5, 4)])
    for x, begins in (("step", [(3, 2), (5, 3)]), (None, [(3, 3), (5, 5)])):
        panel = Panel(title="", x=x, y=("y",), scale="linear", min=None, max=None, rule=None, wide=False)
        found = plot(columns, panel, width=9)["attempts"]
        assert [(one["attempt"], one["x"]) for one in found] == begins


def test_points_of_one_attempt_at_the_same_x_are_all_drawn():
    (line,) = drawn([{"epoch": 1, "y": y} for y in (1.0, 99.0, 2.0)], x="epoch", attempts=[(1, 0)])
    assert values(line) == [(1, 1), (1, 99), (1, 2)]


@pytest.mark.parametrize("x", ["step", None])
def test_one_spike_among_all_points_that_a_run_keeps_is_in_its_bucket(x):
    points = [{"step": at, "y": 1.0} for at in range(200_000)]
    points[123_456]["y"] = 1e6
    points[123_460]["y"] = -5.0
    (line,) = drawn(points, x=x, width=600)
    assert len(line["x"]) <= 600
    (place,) = [at for at, high in enumerate(line["max"]) if high == 1e6]
    assert (line["min"][place], line["last"][place]) == (-5.0, 1.0)
    assert line["x"][place - 1] < 123_456 <= line["x"][place]


def test_gaps_smaller_than_a_pixel_cost_no_more_buckets_than_there_are_pixels():
    points = [{"y": 1.0 if at % 3 else -1.0} for at in range(30_000)]
    (line,) = drawn(points, scale="log", width=500)
    assert (len(line["x"]) <= 500, line["hidden"]) == (True, 10_000)


def test_a_window_is_drawn_at_its_own_detail_with_one_bucket_more_on_each_side():
    points = [{"step": at, "y": float(at)} for at in range(100_000)]
    (line,) = drawn(points, x="step", width=200, window=Window(50_000, 50_100))
    assert line["x"][1:-1] == list(range(50_000, 50_101))
    (nothing,) = drawn(points, x="step", width=200, window=Window(-5, -1))
    assert (nothing["x"], nothing["points"]) == ([], 100_000)


def test_the_widest_values_have_a_bucket():
    points = [{"step": x, "y": y} for x, y in ((-1.7e308, 1e308), (0, 2**70), (1.7e308, -1e308))]
    (line,) = drawn(points, x="step", width=2)
    assert line["x"][-1] == 1.7e308
    assert all(map(math.isfinite, line["max"]))


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["x", "a", "b"]), st.floats(-1e3, 1e3) | st.integers(-5, 5)),
        max_size=60,
    ),
    st.integers(1, 20),
    st.sampled_from(["x", None]),
    st.sampled_from(["linear", "log"]),
)
def test_every_point_is_drawn_hidden_or_left_off(points, width, x, scale):
    for key, line in zip("ab", drawn(points, "a", "b", width=width, x=x, scale=scale), strict=True):
        written = [point for point in points if key in point]
        placed = [point[key] for point in written if x is None or x in point]
        shown = [y for y in placed if scale == "linear" or y > 0]
        assert line["points"] == len(written)
        assert line["without_x"] == len(written) - len(placed)
        assert line["hidden"] == len(placed) - len(shown)
        assert len(line["x"]) <= max(width, 1) or len(shown) <= width
        if shown:
            assert (min(line["min"]), max(line["max"])) == (min(shown), max(shown))
        assert line["x"] == sorted(line["x"])
        assert all(0 < at < len(line["x"]) for at in line["breaks"])
        assert np.all(np.array(line["min"]) <= np.array(line["last"]))
