from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from runtime.errors import Rejected
from runtime.std.optim import adamw, warmup_cosine


def test_only_matrices_decay_and_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model[2].requires_grad_(requires_grad=False)
    decaying, others = adamw(model, lr=0.5, weight_decay=0.25).param_groups
    assert [parameter.shape for parameter in decaying["params"]] == [(4, 3)]
    assert (decaying["weight_decay"], decaying["lr"]) == (0.25, 0.5)
    assert len(others["params"]) == 3
    assert others["weight_decay"] == 0.0


def test_the_rate_warms_up_then_falls_to_its_floor():
    rate = warmup_cosine(1.0, warmup=4, steps=10, floor=0.1)
    assert [rate(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rate(7) == pytest.approx(0.55)
    falling = [rate(step) for step in range(4, 13)]
    assert falling == sorted(falling, reverse=True)
    assert falling[-3:] == [pytest.approx(0.1)] * 3


def test_without_warm_up_the_first_update_has_the_peak():
    assert warmup_cosine(0.3, warmup=0, steps=5)(0) == 0.3
    assert warmup_cosine(0.3, warmup=5, steps=5)(4) == 0.3


def test_a_run_shorter_than_the_warm_up_sees_only_the_way_up():
    rate = warmup_cosine(1.0, warmup=10, steps=4)
    assert [rate(step) for step in range(4)] == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize("bad", [{"warmup": -1}, {"floor": 2.0}, {"floor": -1.0}])
def test_a_schedule_that_makes_no_sense_is_refused(bad: dict[str, Any]):
    with pytest.raises(Rejected, match="warmup >= 0 and 0 <= floor <= peak"):
        warmup_cosine(**{"peak": 1.0, "warmup": 1, "steps": 5, **bad})
