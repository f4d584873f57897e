from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from runtime.errors import Rejected, RunError
from runtime.experiment.model import Batch, Evaluation, Experiment, Reached, Stage
from runtime.training.position import Position, is_finished, remaining


class Loader:
    def batch(self, index: int) -> Batch:
        raise NotImplementedError


def stages(*untils: Any) -> list[Stage]:
    return [Stage(f"s{number}", Loader(), until) for number, until in enumerate(untils)]


def experiment(*evaluations: Evaluation, steps: int = 10, untils: Any = (None,)) -> Experiment:
    model = nn.Linear(1, 1)
    return Experiment(
        model=model,
        loss=lambda _model, _data: torch.zeros(()),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        stages=stages(*untils),
        evaluations=evaluations,
        steps=steps,
    )


def evaluation(name: str, every: int, *, at_start: bool = False) -> Evaluation:
    return Evaluation(name=name, loader=Loader(), every=every, batches=1, at_start=at_start)


def due(step: int, *evaluations: Evaluation) -> list[str]:
    return [one.name for one in remaining(Position(step=step), experiment(*evaluations))]


def test_evaluations_are_due_at_multiples_and_at_the_last_boundary_and_at_0_only_when_asked():
    both = evaluation("a", 4), evaluation("b", 3, at_start=True)
    assert [due(step, *both) for step in range(12)] == [
        ["b"], [], [], ["b"], ["a"], [], ["b"], [], ["a"], ["b"], ["a", "b"], [],
    ]  # fmt: skip


def test_what_was_done_of_a_boundary_is_not_due_again():
    position = Position(step=4, evaluations=["a"])
    rest = remaining(position, experiment(evaluation("a", 4), evaluation("b", 4)))
    assert [one.name for one in rest] == ["b"]


def test_batches_count_from_the_start_of_the_stage():
    position = Position(step=7, stage_start=4)
    assert [position.batch_index(3, microbatch) for microbatch in range(3)] == [9, 10, 11]


def test_a_position_comes_back_from_json():
    position = Position(
        step=8,
        stage=1,
        stage_start=4,
        evaluations=["held-out"],
        stage_change=True,
        values={"held-out": {"eval/loss": float("nan"), "accuracy": 0.5}},
    )
    data = json.loads(json.dumps(position.as_data(stages(4, None), 2), allow_nan=False))
    again = Position.from_data(data, stages(4, None), source="x")
    assert repr(again) == repr(position)
    assert data["loader"] == {"next_batch": 8}


def test_a_stage_is_found_by_its_name_in_an_edited_file():
    data = Position(step=5, stage=0).as_data(stages(8, None), 1)
    edited = [Stage("new", Loader(), 2), *stages(8, None)]
    assert Position.from_data(data, edited, source="x").stage == 1


def test_a_stage_that_is_gone_is_rejected_by_name():
    data = Position(step=5, stage=1).as_data(stages(4, None), 1)
    with pytest.raises(Rejected, match="x was written in stage 's1', and this experiment file has only s0"):
        Position.from_data(data, stages(None), source="x")


@pytest.mark.parametrize(("step", "ends"), [(3, False), (4, True), (5, True)])
def test_a_stage_ends_at_its_step(step: int, *, ends: bool):
    assert Position(step=step).stage_ends(stages(4, None)) is ends


def test_the_last_stage_never_ends():
    assert not Position(step=100, stage=1).stage_ends(stages(4, None))


@pytest.mark.parametrize(
    ("bound", "value", "ends"),
    [
        ({"at_most": 0.5}, 0.5, True),
        ({"at_most": 0.5}, 0.6, False),
        ({"at_most": 0.5}, float("nan"), False),
        ({"at_least": 0.5}, 0.5, True),
        ({"at_least": 0.5}, 0.4, False),
    ],
)
def test_a_stage_ends_on_a_value_measured_at_this_boundary(
    bound: dict[str, float], value: float, *, ends: bool
):
    until = Reached(evaluation="e", metric="m", **bound)
    position = Position(step=4, values={"e": {"m": value}})
    assert position.stage_ends(stages(until, None)) is ends
    position.advance()
    assert not position.stage_ends(stages(until, None))


def test_a_stage_that_waits_for_a_metric_nobody_reports_says_what_is_reported():
    until = Reached(evaluation="e", metric="typo", at_most=1.0)
    with pytest.raises(RunError, match="metric 'typo' of evaluation 'e', which reports only eval/loss, m"):
        Position(values={"e": {"eval/loss": 1.0, "m": 2.0}}).stage_ends(stages(until, None))


@pytest.mark.parametrize(
    ("position", "finished"),
    [
        (Position(step=9), False),
        (Position(step=10), False),
        (Position(step=10, evaluations=["a"]), True),
        (Position(step=11), True),
    ],
)
def test_a_run_is_finished_when_nothing_of_its_last_boundary_is_left(position: Position, *, finished: bool):
    assert is_finished(position, experiment(evaluation("a", 4))) is finished


def test_a_stage_change_at_the_last_boundary_is_part_of_it():
    until = Reached(evaluation="a", at_most=1.0)
    with_change = experiment(evaluation("a", 4), untils=(until, None))
    measured: dict[str, Any] = {"evaluations": ["a"], "values": {"a": {"eval/loss": 0.5}}}
    assert not is_finished(Position(step=10, **measured), with_change)
    assert is_finished(Position(step=10, stage=1, stage_change=True, **measured), with_change)
