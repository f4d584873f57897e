from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any, cast

import pytest
import torch
from torch import nn

from runtime.errors import Rejected
from runtime.experiment.model import Batch, Evaluation, Experiment, Reached, Stage


class Loader:
    def batch(self, index: int) -> Batch:
        return Batch(torch.full((2, 3), float(index)), 2)


def loss(model: nn.Module, data: Any) -> Any:
    return model(data).mean()


def experiment(**changes: Any) -> Experiment:
    model = changes.get("model", nn.Linear(3, 1))
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else [torch.zeros(1)]
    fields: dict[str, Any] = {
        "model": model,
        "loss": loss,
        "optimizer": torch.optim.SGD(parameters, lr=0.1),
        "stages": [Stage("only", Loader())],
        "steps": 8,
        **changes,
    }
    return Experiment(**fields)


def evaluation(**changes: Any) -> Evaluation:
    fields: dict[str, Any] = {"name": "eval", "loader": Loader(), "every": 2, "batches": 3, **changes}
    return Evaluation(**fields)


def test_a_good_experiment_keeps_its_stages_and_evaluations_as_tuples():
    made = experiment(
        stages=[Stage("a", Loader(), until=4), Stage("b", Loader())], evaluations=[evaluation()]
    )
    assert [stage.name for stage in made.stages] == ["a", "b"]
    assert isinstance(made.stages, tuple)
    assert isinstance(made.evaluations, tuple)
    with pytest.raises(FrozenInstanceError):
        made.steps = 9  # type: ignore[misc] # that is the test


BAD_FIELDS = [
    ({"steps": 0}, "steps must be an integer, at least 1, got 0"),
    ({"steps": True}, "steps must be an integer, at least 1, got True"),
    ({"steps": 8.0}, "steps must be an integer, at least 1, got 8.0"),
    ({"steps": 2**63}, "steps must be an integer, at least 1, got 9223372036854775808"),
    ({"microbatches": 0}, "microbatches must be an integer, at least 1, got 0"),
    ({"checkpoint_every": 0}, "checkpoint_every must be an integer, at least 1, got 0: None means only at"),
    (
        {"keep_last": 1},
        "keep_last must be an integer, at least 2, got 1: the newest may turn out to be",
    ),
    ({"keep_every": 0}, "keep_every must be an integer, at least 1, got 0: None means that none is kept for"),
    ({"precision": "fp64"}, "precision must be one of fp32, bf16, fp16, got 'fp64'"),
    ({"seed": -1}, "seed must be an integer, at least 0, got -1"),
    ({"compile": 1}, "compile must be a bool, got 1"),
    ({"clip_norm": 0.0}, "clip_norm must be a finite number above 0, got 0.0"),
    ({"clip_norm": float("nan")}, "clip_norm must be a finite number above 0, got nan"),
    ({"model": "model"}, "model must be a Module, got 'model'"),
    ({"model": nn.Linear(3, 1, device="meta")}, "the model must be on the CPU, got weight on meta"),
    ({"loss": nn.MSELoss}, "loss must be a function (model, data) -> a scalar tensor, got the class MSELoss"),
    ({"optimizer": None}, "optimizer must be an Optimizer, got None"),
    ({"learning_rate": 0.1}, "learning_rate must be a function (number of an update, from 0) -> its rate"),
    ({"state": {"best": 3}}, "state['best'] must have state_dict and load_state_dict, got 3"),
    ({"stages": []}, "stages must hold at least one stage"),
    ({"stages": Stage("a", Loader())}, "stages must be a list of Stage, got Stage("),
    ({"stages": ["a"]}, "every one of stages must be a Stage, got 'a'"),
    ({"stages": [Stage("a", Loader()), Stage("b", Loader())]}, "stage 'a' must say until when it lasts"),
    ({"stages": [Stage("a", Loader(), until=4)]}, "the last stage 'a' must leave until unset, got 4"),
    (
        {"stages": [Stage("a", Loader(), until=4), Stage("b", Loader(), until=4), Stage("c", Loader())]},
        "stage 'b' must end after step 4, where the one before it ends, got until=4",
    ),
    (
        {"stages": [Stage("a", Loader(), until=4), Stage("a", Loader())]},
        "stages must have different names, got 'a' twice",
    ),
    (
        {"stages": [Stage("a", Loader(), until=Reached(evaluation="x", at_most=1)), Stage("b", Loader())]},
        "stage 'a' waits for an evaluation of the experiment, got 'x'; accepted: none",
    ),
    (
        {"evaluations": [evaluation(), evaluation()]},
        "evaluations must have different names, got 'eval' twice",
    ),
    (
        {"optimizer": torch.optim.SGD(nn.Linear(5, 7).parameters(), lr=0.1)},
        "got one of shape [7, 5] in group 0 that is none",
    ),
    (
        {"optimizer": torch.optim.LBFGS(nn.Linear(3, 1).parameters())},
        "optimizer must take a step without a closure, got LBFGS",
    ),
    ({"optimizer": torch.optim.SGD([{"params": []}], lr=0.1)}, "optimizer must train at least one parameter"),
    ({"model": nn.LazyLinear(1)}, "the model's parameter weight has no shape yet: call the model once"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_FIELDS)
def test_a_bad_field_of_an_experiment_is_refused_in_one_line(changes: dict[str, Any], message: str):
    with pytest.raises(Rejected) as refused:
        experiment(**changes)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stage("", Loader()), "Stage.name must be a non-empty string, got ''"),
        (lambda: Stage("\ud800", Loader()), "Stage.name must be valid Unicode"),
        (lambda: Stage("é" * 257, Loader()), "Stage.name must be at most 512 bytes long, got 514"),
        (
            lambda: Stage("a", cast("Any", [1])),
            "the loader of stage 'a' must be a loader with a method batch(index)",
        ),
        (lambda: Stage("a", cast("Any", Loader)), "the loader of stage 'a' must be a loader"),
        (lambda: Stage("a", Loader(), until=0), "until of stage 'a' must be an integer, at least 1, got 0"),
        (lambda: evaluation(every=0), "every of evaluation 'eval' must be an integer, at least 1, got 0"),
        (
            lambda: evaluation(batches="3"),
            "batches of evaluation 'eval' must be an integer, at least 1, got '3'",
        ),
        (lambda: evaluation(loss=3), "loss of evaluation 'eval' must be a function"),
        (lambda: evaluation(at_start=None), "at_start of evaluation 'eval' must be a bool, got None"),
        (lambda: Reached(evaluation="e"), "Reached takes exactly one finite bound"),
        (lambda: Reached(evaluation="e", at_most=1, at_least=0), "Reached takes exactly one finite bound"),
        (lambda: Reached(evaluation="e", at_most=float("inf")), "Reached takes exactly one finite bound"),
        (lambda: Batch(None, 0), "Batch.num_examples must be an integer, at least 1, got 0"),
        (lambda: Batch(None, 1, num_tokens=0), "Batch.num_tokens must be an integer, at least 1, got 0"),
    ],
)
def test_a_bad_part_is_refused_where_it_is_made(make: Any, message: str):
    with pytest.raises(Rejected, match=r".") as refused:
        make()
    assert message in str(refused.value)


def test_a_refusal_shows_a_value_whose_repr_fails():
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    with pytest.raises(Rejected, match="got an Odd"):
        experiment(steps=Odd())


def test_a_batch_survives_pickling():
    batch = Batch([torch.ones(2)], 2, 4)
    copied = pickle.loads(pickle.dumps(batch))
    assert torch.equal(copied.data[0], batch.data[0])
    assert (copied.num_examples, copied.num_tokens) == (2, 4)
