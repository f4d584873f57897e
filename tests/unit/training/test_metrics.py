from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from runtime.training.metrics import Collector, Pending, collecting, metric

TRAIN = {"split": "train", "stage": "easy"}


def points(collector: Collector) -> list[tuple[str, float, dict[str, str]]]:
    return [(name, value, dict(metadata)) for name, value, metadata in Pending(collector.take()).points()]


def test_outside_a_run_metric_does_nothing():
    metric("any name at all \n", torch.ones(3), key="value")


def test_a_value_carries_its_metadata_and_the_runtimes_wins():
    collector = Collector(TRAIN)
    with collecting(collector):
        metric("accuracy", 0.5, head="a", split="mine")
    assert points(collector) == [("accuracy", 0.5, {"head": "a", "split": "train", "stage": "easy"})]


def test_one_point_per_name_and_metadata_weighted_by_examples():
    collector = Collector(TRAIN)
    with collecting(collector):
        for weight, value in ((3, 1.0), (1, 5.0)):
            collector.weight = weight
            metric("a", value)
            metric("a", value * 10, head="x")
    assert [(name, value) for name, value, _ in points(collector)] == [("a", 2.0), ("a", 20.0)]


def test_points_stand_in_the_order_of_their_first_call():
    collector = Collector(TRAIN)
    with collecting(collector):
        for name in ("b", "a", "b", "c"):
            metric(name, 1)
    assert [name for name, _, _ in points(collector)] == ["b", "a", "c"]


def test_the_order_of_metadata_makes_no_second_point():
    collector = Collector(TRAIN)
    with collecting(collector):
        metric("a", 1.0, x="1", y="2")
        metric("a", 3.0, y="2", x="1")
    assert points(collector) == [("a", 2.0, {"x": "1", "y": "2", **TRAIN})]


def test_a_single_value_is_not_rounded_by_its_weight():
    collector = Collector(TRAIN)
    collector.weight = 3
    with collecting(collector):
        metric("a", 0.1)
    assert points(collector)[0][1] == 0.1


def test_a_tensor_counts_as_it_was_at_the_call():
    collector = Collector(TRAIN)
    leaf = torch.tensor(1.5)
    grown = torch.tensor(2.0, requires_grad=True) * 2
    with collecting(collector):
        metric("leaf", leaf)
        metric("grown", grown)
    leaf.add_(1)
    with torch.no_grad():
        grown.add_(1)
    assert [value for _, value, _ in points(collector)] == [1.5, 4.0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, 1.0), (3, 3.0), (np.float32(0.5), 0.5), (np.array(2), 2.0), (torch.tensor(7), 7.0)],
)
def test_every_kind_of_number_is_taken(value: Any, expected: float):
    collector = Collector(TRAIN)
    with collecting(collector):
        metric("a", value)
    assert points(collector)[0][1] == expected


def test_values_that_are_not_finite_are_kept_as_they_are():
    collector = Collector(TRAIN)
    with collecting(collector):
        metric("a", float("nan"))
        metric("b", torch.tensor(-math.inf))
    values = [value for _, value, _ in points(collector)]
    assert math.isnan(values[0])
    assert values[1] == -math.inf


@pytest.mark.parametrize(
    ("name", "value", "metadata", "says"),
    [
        ("a", torch.ones(3), {}, r"0-d tensor, got one of shape \(3,\)"),
        ("a", torch.tensor(1j), {}, "real number"),
        ("a", "1", {}, "number or a 0-d tensor, got '1'"),
        ("a", 10**400, {}, "real number"),
        ("a", None, {}, "number"),
        ("ä", 1.0, {}, "printable ASCII"),
        ("", 1.0, {}, "1 to 256"),
        ("a", 1.0, {"key": 3}, "must be text"),
        ("a", 1.0, {"key": ["list"]}, "must be text"),
        ("a", 1.0, {"key": "x" * 513}, "at most 512 bytes"),
        ("a", 1.0, {f"k{i}": "" for i in range(31)}, "at most 32 keys, got 33"),
        ("train/loss", 1.0, {}, "is the runtime's"),
        ("train/loss", 1.0, {"split": "mine"}, "is the runtime's"),
    ],
)
def test_what_the_wire_would_refuse_is_refused_at_the_call(
    name: str, value: Any, metadata: dict[str, Any], says: str
):
    with collecting(Collector(TRAIN)), pytest.raises(ValueError, match=says):
        metric(name, value, **metadata)


def test_a_runtime_name_under_own_metadata_is_the_files():
    collector = Collector(TRAIN)
    with collecting(collector):
        metric("train/loss", 1.0, head="a")
    assert points(collector) == [("train/loss", 1.0, {"head": "a", **TRAIN})]


def test_metadata_that_changes_at_every_call_does_not_fill_the_memory():
    collector = Collector(TRAIN)
    with collecting(collector):
        for i in range(10_000):
            metric("a", 1.0, i=str(i))
    assert len(collector._known) <= 4_096
    assert len(points(collector)) == 10_000
    collector.take()
    assert len(collector._series) <= 4_096


def test_collecting_ends_with_its_block_even_when_the_loss_raises():
    collector = Collector(TRAIN)
    with pytest.raises(ZeroDivisionError), collecting(collector):
        raise ZeroDivisionError
    metric("a", 1.0)
    assert collector.take() == []


def test_a_rate_is_an_amount_by_seconds():
    collector = Collector(TRAIN)
    pending = Pending([], rate=(collector.own("rate/tokens"), 100, lambda: 0.5))
    assert pending.points() == [("rate/tokens", 200.0, TRAIN)]
