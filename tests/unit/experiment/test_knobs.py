from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import Any, Literal

import pytest

from runtime.errors import Rejected
from runtime.experiment.knobs import bind, read_knobs, read_variants


@dataclass(frozen=True)
class Knobs:
    steps: int = 8
    rate: float = 1
    mode: Literal["easy", 2, True] = "easy"
    noisy: bool = False
    name: str = "plain"


VARIANTS = {"tiny": Knobs(steps=2), "long": Knobs(steps=100)}


def bound(variant: str | None = None, **values: Any) -> Any:
    return bind(Knobs, VARIANTS, variant=variant, values=values)


def test_texts_are_read_by_the_type_of_the_knob():
    knobs = bound(steps="1_000", rate="1e-3", mode="2", noisy="True", name="a=b")
    assert knobs == Knobs(steps=1000, rate=0.001, mode=2, noisy=True, name="a=b")


def test_an_integer_becomes_a_float_where_one_is_wanted():
    assert type(bound().rate) is float
    assert type(bound(rate="3").rate) is float


def test_an_override_wins_over_the_variant_and_that_over_the_defaults():
    assert bound("tiny").steps == 2
    assert bound("tiny", steps=5).steps == 5
    assert bound("tiny", rate="2").steps == 2


def test_a_non_finite_number_is_a_value():
    assert bound(rate="-inf").rate == float("-inf")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": "1.0"}, "knob steps takes an integer of 64 bits, got '1.0'"),
        ({"steps": "1e3"}, "knob steps takes an integer of 64 bits, got '1e3'"),
        ({"steps": "9" * 5000}, "knob steps takes an integer of 64 bits, got '999"),
        ({"steps": str(2**63)}, "knob steps takes an integer of 64 bits, got 9223372036854775808"),
        ({"rate": "fast"}, "knob rate takes a number, got 'fast'"),
        ({"rate": "1e400"}, "knob rate takes a number, got '1e400'"),
        ({"mode": "medium"}, "knob mode takes one of easy, 2, true, got 'medium'"),
        ({"noisy": "1"}, "knob noisy takes true or false, got '1'"),
        ({"name": "\ud800"}, "knob name takes text in Unicode, got"),
        (
            {"stepz": "3"},
            "unknown knob 'stepz', did you mean 'steps'?; accepted: steps, rate, mode, noisy, name",
        ),
        ({"zzzzz": "3"}, "unknown knob 'zzzzz'; accepted: steps, rate"),
        ({"eval_every": 3}, "the file has no knob eval_every: add `eval_every: int = 100` to Knobs"),
    ],
)
def test_a_bad_override_is_refused_with_what_is_accepted(values: dict[str, Any], message: str):
    with pytest.raises(Rejected) as refused:
        bound(**values)
    assert message in str(refused.value)


def test_an_unknown_variant_is_refused_with_the_closest_and_all_names():
    with pytest.raises(
        Rejected, match=r"unknown variant 'tini', did you mean 'tiny'\?; accepted: tiny, long"
    ):
        bound("tini")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("rate", float, 1.0)], "must have the knob steps, an integer"),
        ([("steps", float, 1.0)], "must have the knob steps, an integer"),
        ([("steps", int, 1), ("eval_every", str, "")], "the knob eval_every must be an integer"),
        (
            [("steps", int, 1), ("sizes", list[int], field(default_factory=list))],
            "knob sizes has the type list",
        ),
        (
            [("steps", int, 1), ("maybe", int | None, None)],
            "knob maybe has the type int | None; accepted: int",
        ),
        ([("steps", int, 1), ("mode", Literal["a", b"b"], "a")], "knob mode has the type"),
        ([("steps", int)], "knob steps must have a default value"),
    ],
)
def test_a_class_of_knobs_that_cannot_be_bound_is_refused(fields: list[Any], message: str):
    with pytest.raises(Rejected) as refused:
        read_knobs(make_dataclass("Knobs", fields, frozen=True))
    assert message in str(refused.value)


def test_a_default_of_the_wrong_type_is_refused():
    wrong = make_dataclass("Knobs", [("steps", int, 1), ("noisy", bool, 1)], frozen=True)
    with pytest.raises(Rejected, match="knob noisy takes true or false, got 1"):
        bind(wrong, {}, variant=None, values={})


@pytest.mark.parametrize("kind", [object, make_dataclass("Knobs", [("steps", int, 1)])])
def test_knobs_that_are_no_frozen_dataclass_are_refused(kind: type):
    with pytest.raises(Rejected, match="Knobs must be a frozen dataclass"):
        read_knobs(kind)


@pytest.mark.parametrize("variants", [[], {"a": 3}, {"": Knobs()}, {3: Knobs()}])
def test_variants_that_are_no_named_knobs_are_refused(variants: Any):
    with pytest.raises(Rejected, match=r"VARIANTS must be a dict of names to Knobs"):
        read_variants({"VARIANTS": variants}, Knobs)


def test_a_file_may_have_no_variants():
    assert read_variants({}, Knobs) == {}
