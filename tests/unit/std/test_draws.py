from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from runtime.std.draws import random_integers, seeded


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(1))  # noqa: NPY002 - the shared one


def state() -> tuple[object, ...]:
    shared: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the shared one
    return random.getstate(), shared["state"]["key"].tobytes(), torch.get_rng_state().numpy().tobytes()


def test_the_numbers_of_a_key_never_change():
    """Raw Philox under a SeedSequence is what numpy keeps between versions: a resume may meet another one."""
    assert random_integers(3, 1, 2).tolist() == [
        5527141919257688469,
        1364028082176693913,
        13560305045195242260,
    ]
    assert random_integers(0, 1).tolist() == []


def test_what_is_drawn_is_a_function_of_the_key():
    drawn: dict[tuple[int, ...], list[object]] = {}
    for key in [(1, 2), (2, 1), (1, 2)]:
        with seeded(*key):
            drawn.setdefault(key, []).append(draw())
    assert drawn[1, 2][0] == drawn[1, 2][1]
    assert drawn[1, 2][0] != drawn[2, 1][0]


def test_the_generators_are_put_back_even_after_an_error():
    draw()
    before = state()
    with pytest.raises(KeyError), seeded(7):
        raise KeyError(draw())
    assert state() == before
