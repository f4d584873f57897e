from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runtime.errors import RunError
from runtime.experiment.model import Batch, Evaluation, Experiment, Stage
from runtime.std.workers import Workers
from runtime.training.evaluation import Evaluator
from runtime.training.metrics import metric
from runtime.training.position import Position
from runtime.training.precision import Precision
from runtime.training.update import Updater
from tests.support.generators import generators

CPU = torch.device("cpu")


class Rows:
    """Batch i holds the rows that `split` gives it, of fixed data; what it draws must not matter."""

    def __init__(self, sizes: list[int], tokens: int | None = None) -> None:
        self.sizes = sizes
        self.tokens = tokens

    def batch(self, index: int) -> Batch:
        torch.rand(7)
        start = sum(self.sizes[: index % len(self.sizes)])
        size = self.sizes[index % len(self.sizes)]
        data = torch.arange(24.0).view(8, 3)[start : start + size]
        return Batch(data, size, self.tokens)


def square(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
    metric("rows", float(len(data)))
    return model(data).square().mean()  # type: ignore[no-any-return] # a module's result is untyped


def make(loader: Any, *, model: nn.Module | None = None, **changed: Any) -> Experiment:
    torch.manual_seed(0)
    model = model or nn.Linear(3, 1)
    fields: dict[str, Any] = {
        "model": model,
        "loss": square,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.001),
        "stages": [Stage("only", loader)],
        "steps": 4,
    }
    return Experiment(**(fields | changed))


def updater(experiment: Experiment) -> Updater:
    precision = Precision(experiment.precision, CPU)
    return Updater(experiment, model=experiment.model, device=CPU, precision=precision)


def evaluator(experiment: Experiment, should_stop: Any = lambda: False) -> Evaluator:
    precision = Precision(experiment.precision, CPU)
    return Evaluator(
        experiment, model=experiment.model, device=CPU, precision=precision, should_stop=should_stop
    )


def weights(experiment: Experiment) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in experiment.model.parameters()])


def test_ragged_microbatches_make_the_update_of_all_their_examples_together():
    whole, parts = make(Rows([8])), make(Rows([5, 3]), microbatches=2)
    one, two = updater(whole)(Position()).points(), updater(parts)(Position()).points()
    assert torch.allclose(weights(whole), weights(parts), rtol=1e-6, atol=0)
    assert two[0][0] == "train/loss"
    assert two[0][1] == pytest.approx(one[0][1], rel=1e-6)


def test_a_lull_comes_before_every_backward_pass_and_after_its_loss(monkeypatch):
    order = []
    experiment = make(Rows([5, 3]), microbatches=2)
    update = Updater(
        experiment,
        model=experiment.model,
        device=CPU,
        precision=Precision(experiment.precision, CPU),
        lull=lambda: order.append("lull"),
    )

    def check_loss(loss: torch.Tensor) -> torch.Tensor:
        order.append("loss")
        return loss

    def backward(_: Precision, loss: torch.Tensor) -> None:
        order.append("backward")
        loss.backward()

    monkeypatch.setattr("runtime.training.update.check_loss", check_loss)
    monkeypatch.setattr(Precision, "backward", backward)
    update(Position())
    assert order == ["loss", "lull", "backward"] * 2


def test_points_come_in_order_with_split_and_stage():
    points = updater(make(Rows([8], tokens=24)))(Position()).points()
    assert [name for name, _, _ in points] == [
        "train/loss",
        "rows",
        "train/grad_norm",
        "train/lr",
        "rate/tokens",
    ]
    assert all(dict(metadata) == {"split": "train", "stage": "only"} for _, _, metadata in points)


def test_data_without_tokens_is_counted_in_examples():
    assert updater(make(Rows([8])))(Position()).points()[-1][0] == "rate/examples"


def test_the_rate_of_an_update_is_that_of_its_number():
    experiment = make(Rows([8]), learning_rate=lambda step: 1.0 / (step + 1))
    points = dict((name, value) for name, value, _ in updater(experiment)(Position(step=3)).points())  # noqa: C402
    assert points["train/lr"] == 0.25


def test_groups_of_different_rates_are_told_apart():
    model = nn.Linear(3, 1)
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}]
    experiment = make(Rows([8]), model=model, optimizer=torch.optim.SGD(groups, lr=0.1))
    rates = [
        (value, metadata["group"])
        for name, value, metadata in updater(experiment)(Position()).points()
        if name == "train/lr"
    ]
    assert rates == [(0.1, "0"), (0.2, "1")]


def test_the_norm_is_that_before_clipping_and_the_update_is_clipped():
    free, clipped = make(Rows([8])), make(Rows([8]), clip_norm=1e-3)
    before = weights(clipped)
    norms = [
        next(value for name, value, _ in updater(one)(Position()).points() if name == "train/grad_norm")
        for one in (free, clipped)
    ]
    assert norms[0] == norms[1] > 1
    assert (weights(clipped) - before).norm().item() == pytest.approx(1e-3 * 0.001, rel=1e-3)


def test_an_update_takes_no_gradient_that_was_there_before():
    results = []
    for left in (None, 1.0):  # by the file, by an evaluation, or by an update in which a part was not trained
        experiment = make(Rows([8]))
        experiment.model.weight.grad = None if left is None else torch.full((1, 3), left)
        results.append((updater(experiment)(Position()).points()[:-1], weights(experiment).tolist()))
    assert results[0] == results[1]


def test_generators_after_an_update_depend_on_its_place_alone():
    """Not on what was drawn before, and not on how many processes draw the batches."""
    loaders = [Rows([8]), Rows([8]), *(Workers(Rows([8]), processes=processes) for processes in (0, 2))]
    after = []
    for number, loader in enumerate(loaders):
        experiment = make(loader)
        torch.rand(number + 1)
        np.random.rand(number + 1)  # noqa: NPY002 - the generator that files share
        random.seed(number)
        updater(experiment)(Position(step=2))
        after.append(generators())
    assert after == [after[0]] * 4


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda model, data: model(data), r"a loss must return a 0-d tensor, got a tensor of shape \(8, 1\)"),
        (lambda _model, _data: 1.0, "a loss must return a 0-d tensor, got 1.0"),
    ],
)
def test_a_loss_that_is_no_number_is_named(loss: Any, says: str):
    with pytest.raises(RunError, match=says):
        updater(make(Rows([8]), loss=loss))(Position())


class Failing(Rows):
    def batch(self, index: int) -> Batch:
        if index == 1:
            raise OSError("a worker died")
        return super().batch(index)


def test_a_loader_that_fails_leaves_the_state_untouched():
    model = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))
    experiment = make(Failing([4, 4]), model=model, microbatches=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    update = updater(experiment)
    with pytest.raises(OSError, match="a worker died"):
        update(Position())
    assert update.untouched
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_update_that_fails_after_it_changed_a_buffer_has_touched_the_state():
    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        model(data)
        raise OSError("late")

    model = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))
    update = updater(make(Rows([8]), model=model, loss=loss))
    with pytest.raises(OSError, match="late"):
        update(Position())
    assert not update.untouched


class Teacher(nn.Module):
    """Changes what no optimiser does: weights in place, and a buffer by another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(3, 1), nn.Linear(3, 1)
        self.teacher.requires_grad_(requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))
        self.calls: torch.Tensor

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.student(data) - self.teacher(data)  # type: ignore[no-any-return]

    @torch.no_grad()
    def follow(self) -> None:
        self.teacher.weight.lerp_(self.student.weight, 0.1)


@pytest.mark.parametrize("change", [Teacher.follow, lambda model: model(torch.ones(1, 3))])
def test_an_update_that_fails_after_it_changed_what_no_optimiser_trains_has_touched_the_state(change: Any):
    def loss(model: nn.Module, _data: torch.Tensor) -> torch.Tensor:
        change(model)
        raise OSError("late")

    update = updater(make(Rows([8]), model=Teacher(), loss=loss))
    with pytest.raises(OSError, match="late"):
        update(Position())
    assert not update.untouched


# Evaluations


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002 - what files share


class Keeping:
    """Draws when it makes its batch, and keeps that: each attempt's first pass draws, no other one does."""

    def __init__(self) -> None:
        self.drawn: list[tuple[float, ...]] = []

    def batch(self, _index: int) -> Batch:
        if not self.drawn:
            self.drawn.append(drawn())
        return Batch(torch.ones(8, 3), 8)


@pytest.mark.parametrize("kind", ["update", "evaluation"])
def test_a_loss_draws_the_same_whether_its_batch_was_kept_or_drawn_and_never_what_that_drew(kind: str):
    """Else a resume's first evaluation gives other values than the unbroken run's, and may end a stage."""
    loader, computed = Keeping(), []

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        computed.append(drawn())
        return square(model, data)

    experiment = make(loader, loss=loss)
    for _ in range(2):
        if kind == "update":
            updater(experiment)(Position(step=2))
        else:
            evaluator(experiment)(evaluation([8], loader=loader), step=2, stage="only")
    (made,) = loader.drawn
    assert computed[0] == computed[1]
    assert not set(computed[0]) & set(made)


def evaluation(sizes: list[int], **changed: Any) -> Evaluation:
    fields: dict[str, Any] = {"name": "e", "loader": Rows(sizes), "every": 1, "batches": len(sizes)}
    return Evaluation(**(fields | changed))


def test_an_evaluation_is_the_mean_over_its_examples_loss_first():
    experiment = make(Rows([8]))
    points = evaluator(experiment)(evaluation([5, 3]), step=0, stage="only")
    whole = evaluator(experiment)(evaluation([8]), step=0, stage="only")
    assert points is not None
    assert whole is not None
    found, expected = points.points(), whole.points()
    assert [name for name, _, _ in found] == ["eval/loss", "rows"]
    assert found[0][1] == pytest.approx(expected[0][1], rel=1e-6)
    assert dict(found[0][2]) == {"split": "eval", "stage": "only", "pass": "e"}


def test_an_evaluation_leaves_modes_buffers_and_gradients_as_they_were():
    model = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1), nn.Dropout(0.5))
    model[1].eval()
    experiment = make(Rows([8]), model=model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluator(experiment)(evaluation([8]), step=0, stage="only")
    assert [module.training for module in model] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Adapter(nn.Module):
    """Merges its weights to evaluate and parts them to train, as adapters of low rank do."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.low = nn.Linear(3, 1), nn.Parameter(torch.ones(1, 3))
        self.merged = False

    def train(self, mode: bool = True) -> Adapter:  # noqa: FBT001, FBT002 - torch's signature
        super().train(mode)
        if self.merged == mode:
            with torch.no_grad():
                self.base.weight.add_(self.low, alpha=-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        weight = self.base.weight if self.merged else self.base.weight + self.low
        return data @ weight.t()


def test_an_evaluation_ends_the_mode_as_it_began_it_by_train():
    model = nn.Sequential(Adapter(), nn.Dropout(0.5))
    model[1].eval()
    evaluator(make(Rows([8]), model=model))(evaluation([8]), step=0, stage="only")
    assert not model[0].merged
    assert [module.training for module in model] == [True, False]


class Seen:
    def __init__(self) -> None:
        self.batches = 0

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, state: Any) -> None:
        self.batches = state["batches"]


def test_an_evaluation_that_a_signal_cuts_short_has_never_been():
    seen = Seen()

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        seen.batches += 1
        return square(model, data)

    experiment = make(Rows([8]), loss=loss, state={"seen": seen})
    asked = iter([False, True])
    assert evaluator(experiment, lambda: next(asked))(evaluation([4, 4]), step=0, stage="only") is None
    assert seen.batches == 0


def test_an_evaluation_that_a_signal_cuts_short_gives_back_the_buffers():
    model = Teacher()
    asked = iter([False, True])
    experiment = make(Rows([8]), model=model)
    assert evaluator(experiment, lambda: next(asked))(evaluation([4, 4]), step=0, stage="only") is None
    assert model.calls.item() == 0


class Caches(nn.Module):
    """Fills a buffer at its first pass, and replaces one that nothing can be copied into."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)
        self.cache: torch.Tensor | None
        self.register_buffer("cache", None)
        self.register_buffer("row", torch.zeros(3).expand(2, 3))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.cache = data.clone() if self.cache is None else self.cache
        self.row = torch.ones(2, 3)
        return self.out(data)  # type: ignore[no-any-return]


def test_an_evaluation_that_a_signal_cuts_short_unmakes_buffers_of_every_kind():
    model = Caches()
    asked = iter([False, True])
    experiment = make(Rows([8]), model=model)
    assert evaluator(experiment, lambda: next(asked))(evaluation([4, 4]), step=0, stage="only") is None
    assert model.cache is None
    assert torch.equal(model.row, torch.zeros(2, 3))


def test_an_evaluation_whose_loader_dies_of_the_signal_has_never_been():
    asked = iter([False, True])
    experiment = make(Rows([8]))
    cut = evaluation([4, 4], loader=Failing([4, 4]), batches=2)
    assert evaluator(experiment, lambda: next(asked, True))(cut, step=0, stage="only") is None


def test_an_evaluation_that_raises_without_a_signal_is_the_files_failure():
    with pytest.raises(OSError, match="a worker died"):
        evaluator(make(Rows([8])))(
            evaluation([4, 4], loader=Failing([4, 4]), batches=2), step=0, stage="only"
        )
