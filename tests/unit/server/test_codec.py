"""Points come back bit for bit, in few bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.server.store.codec import decode, encode
from infra.server.store.points import NO_STEP, Points, points

steps = st.one_of(st.just(NO_STEP), st.integers(0, 2**53 - 2))
doubles = st.floats(allow_nan=False, allow_infinity=False)
rows = st.lists(
    st.tuples(steps, st.integers(0, 2**53 - 1), doubles, st.integers(1, 2**62)), min_size=1, max_size=200
)


def same(one: Points, other: Points) -> bool:
    """Bit for bit: -0.0 is not 0.0."""
    return all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in Points.__dataclass_fields__
    )


@given(rows)
def test_points_come_back_bit_for_bit(table):
    wanted = points(*zip(*table, strict=True))
    assert same(decode(encode(wanted)), wanted)


@pytest.mark.parametrize("value", [-0.0, 0.0, 5e-324, -5e-324, 1.7976931348623157e308, 0.1, -1.0])
@pytest.mark.parametrize("count", [1, 2, 31, 32, 1000])
def test_the_hardest_values_come_back_bit_for_bit(value, count):
    wanted = points([2**53 - 2] * count, [2**53 - 1] * count, [value] * count, [1] * count)
    assert same(decode(encode(wanted)), wanted)


@pytest.mark.parametrize("most", [127, 128, 32767, 32768, 2**31 - 1, 2**31, 2**53 - 1])
def test_differences_at_the_edge_of_every_width_come_back(most):
    for low, high in ((0, most), (0, most - 1), (1, most)):
        column = [low, high, low, low, high]
        wanted = points(column, column, [0.0] * 5, column)
        assert same(decode(encode(wanted)), wanted)


def test_a_chunk_of_a_real_run_takes_at_most_four_bytes_a_point():
    """Losses that were born as float32, regular steps, milliseconds that jitter, one resume."""
    rng, count = np.random.default_rng(7), 65_536
    loss = (2.5 * np.exp(-np.arange(count) / 20_000) + rng.normal(0, 0.05, count)).astype(np.float32)
    wanted = Points(
        np.arange(count) * 10,
        1_700_000_000_000 + np.cumsum(350 + rng.normal(0, 12, count).astype(np.int64)),
        loss.astype(np.float64),
        np.where(np.arange(count) < 30_000, 7, 9),
    )
    assert same(decode(encode(wanted)), wanted)
    assert len(encode(wanted)) / count < 4.2


def test_a_lone_point_is_small():
    assert len(encode(points([5], [1_700_000_000_000], [1.0], [3]))) < 70
