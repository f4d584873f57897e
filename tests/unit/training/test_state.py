from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from runtime.checkpoints.format import encode_json, read_tensors
from runtime.checkpoints.snapshot import Snapshots
from runtime.errors import Rejected, RunError
from runtime.experiment.model import Batch, Experiment, Stage
from runtime.training.precision import Precision
from runtime.training.state import TrainingState

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = torch.device("cpu")


class Loader:
    def batch(self, index: int) -> Batch:
        return Batch(torch.full((2, 3), float(index)), 2)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.extra: Any = {"seen": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.norm(self.a(x)))  # type: ignore[no-any-return]

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


class Best:
    def __init__(self) -> None:
        self.value = float("inf")

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["value"]


class Named(nn.Module):
    """A parameter whose name ends as torch's key for extra state does."""

    def __init__(self) -> None:
        super().__init__()
        self.my_extra_state = nn.Parameter(torch.zeros(3))


class Unkept(nn.Module):
    """Changes a buffer that is not persistent, and grows another, as rotary and key-value caches do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.inner.register_buffer("cache", torch.zeros(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.inner.cache, torch.Tensor)
        assert isinstance(self.mean, torch.Tensor)
        self.mean.mul_(0.5).add_(x.mean(0))
        self.inner.cache = torch.cat([self.inner.cache, x.detach().flatten()[:1]])
        return self.inner(x + self.mean)  # type: ignore[no-any-return]


class Adapters(nn.Module):
    """Names a part of its parameters only."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(3, 3), nn.Linear(3, 3)

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        whole = super().state_dict(*arguments, **options)
        return {name: value for name, value in whole.items() if name.startswith("adapter")}


def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
    return model(data).square().mean()  # type: ignore[no-any-return]


def make(
    model: nn.Module | None = None, optimizer: Any = torch.optim.AdamW, state: Any = None, **options: Any
) -> Experiment:
    torch.manual_seed(0)
    model = model or Tied()
    experiment = Experiment(
        model=model,
        loss=loss,
        optimizer=optimizer(model.parameters(), **{"lr": 0.1, **options}),
        stages=[Stage("only", Loader())],
        steps=3,
        state=state or {},
    )
    state_of(experiment)
    return experiment


def train(experiment: Experiment, steps: int = 2) -> None:
    for step in range(steps):
        loss(experiment.model, torch.full((2, 3), float(step)) + torch.arange(6).view(2, 3)).backward()
        experiment.optimizer.step()
        experiment.optimizer.zero_grad()


STATES: dict[int, tuple[Experiment, TrainingState]] = {}


def state_of(experiment: Experiment) -> TrainingState:
    """The state of an experiment, made while that was as the file makes it: `make` asks for it first."""
    made = TrainingState(experiment, Precision(experiment.precision, CPU))
    return STATES.setdefault(id(experiment), (experiment, made))[1]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    STATES.clear()


def moved(source: Experiment, target: Experiment) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Bring the state over as a checkpoint does: through the bytes of its files and its JSON."""
    tensors, data = state_of(source).capture()
    snapshots = Snapshots(expected_bytes=0)
    layout, _ = snapshots.take(tensors)
    files = [
        torch.frombuffer(bytearray(snapshots.view(s.start, s.size_bytes)), dtype=torch.uint8)
        for s in layout.shards
    ]
    copies, data = read_tensors(files, layout.whole), json.loads(encode_json(data))
    state_of(target).fit(copies, data, source="step-00000002")
    state_of(target).restore(copies, data)
    return copies, data


def test_everything_that_training_changed_comes_back_bit_for_bit():
    source, target = make(state={"best": Best()}), make(state={"best": Best()})
    train(source)
    source.state["best"].load_state_dict({"value": 0.25})
    source.model.extra = {"seen": 7}  # type: ignore[assignment] # Tied's
    tensors, _ = moved(source, target)
    again, _ = state_of(target).capture()
    assert tensors.keys() == again.keys()
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    assert target.state["best"].state_dict() == {"value": 0.25}
    assert target.model.extra == {"seen": 7}
    train(source, 1)
    train(target, 1)
    ours, theirs = state_of(source).capture()[0], state_of(target).capture()[0]
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_buffers_that_are_not_persistent_come_back_in_the_shape_they_had():
    source, target = make(Unkept()), make(Unkept())
    train(source)
    tensors, _ = moved(source, target)
    again, _ = state_of(target).capture()
    assert {name for name in tensors if name.startswith("buffers/")} == {
        "buffers/mean",
        "buffers/inner.cache",
    }
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    train(source, 1)
    train(target, 1)
    ours, theirs = state_of(source).capture()[0], state_of(target).capture()[0]
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_tied_weight_is_kept_once():
    names = [name for name in state_of(make()).capture()[0] if name.startswith("model/")]
    assert "model/a.weight" in names
    assert "model/b.weight" not in names


def test_moments_of_another_format_than_their_parameters_keep_it():
    source, target = (
        make(Tied().bfloat16(), _Fp32Moments),
        make(Tied().bfloat16(), _Fp32Moments),
    )
    for group in source.optimizer.param_groups:
        for parameter in group["params"]:
            source.optimizer.state[parameter]["moment"] = torch.full_like(
                parameter, 1 / 3, dtype=torch.float32
            )
    moved(source, target)
    moments = [state["moment"] for state in target.optimizer.state.values()]
    assert all(moment.dtype == torch.float32 for moment in moments)
    assert all(torch.equal(moment, torch.full_like(moment, 1 / 3)) for moment in moments)


class _Fp32Moments(torch.optim.SGD):
    pass


def test_an_option_that_was_edited_follows_the_file_and_the_others_the_checkpoint():
    source, target = make(weight_decay=0.1), make(weight_decay=0.2)
    source.optimizer.param_groups[0]["lr"] = 0.03
    moved(source, target)
    assert target.optimizer.param_groups[0]["weight_decay"] == 0.2
    assert target.optimizer.param_groups[0]["lr"] == 0.03


def test_an_option_that_was_edited_twice_follows_the_newest_file():
    first, second, third = make(weight_decay=0.1), make(weight_decay=0.2), make(weight_decay=0.2)
    moved(first, second)
    moved(second, third)
    assert third.optimizer.param_groups[0]["weight_decay"] == 0.2


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (lambda: make(nn.Linear(3, 3)), r"model/a.bias is float32 \[3\] in it and missing here"),
        (lambda: make(Tied().double()), r"float32 \[3\] in it and float64 \[3\] here"),
        (lambda: make(optimizer=torch.optim.SGD), "AdamW of 5 tensors in it and SGD of 5 tensors here"),
        (lambda: make(state={"best": Best()}), "`state` keeps is empty in it and best here"),
    ],
)
def test_a_shape_a_kind_or_a_name_that_moved_is_rejected_and_changes_nothing(target: Any, says: str):
    source, other = make(), target()
    train(source)
    before = {name: tensor.clone() for name, tensor in state_of(other).capture()[0].items()}
    with pytest.raises(Rejected, match=says):
        moved(source, other)
    after = state_of(other).capture()[0]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_state_that_no_checkpoint_can_keep_is_named():
    class Odd(Best):
        def state_dict(self) -> dict[str, Any]:
            return {"value": object()}

    with pytest.raises(ValueError, match=r"state\.odd\.value is a object"):
        state_of(make(state={"odd": Odd()})).capture()


def test_a_parameter_is_kept_whatever_its_name():
    model = Named()
    tensors, _ = TrainingState(make(model), Precision("fp32", CPU)).capture()
    assert tensors["model/my_extra_state"] is model.my_extra_state


def test_a_trained_parameter_that_the_models_state_dict_leaves_out_is_refused():
    with pytest.raises(
        ValueError, match=r"shapes \[\(3, 3\), \(3,\)\] that are not in the model's state_dict"
    ):
        TrainingState(make(Adapters()), Precision("fp32", CPU)).check()


class Odd(nn.Module):
    """Buffers of every format, and the ways in which training makes, replaces and grows them."""

    def __init__(self, window: int = 3, length: int = 2) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.inner.weight = nn.Parameter(torch.randn(3, 3).t())  # not contiguous
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.same = nn.Parameter(
            self.inner.weight.detach()[0], requires_grad=False
        )  # a view of a trained one
        for name, value in {
            "scalar": torch.zeros(()),
            "empty": torch.zeros(0, 3),
            "mask": torch.zeros(3, dtype=torch.bool),
            "phase": torch.zeros(3, dtype=torch.complex64),
            "phases": torch.zeros(3, dtype=torch.complex128),
            "brief": torch.zeros(3, dtype=torch.bfloat16),
            "small": torch.zeros(3, dtype=torch.float8_e4m3fn),
            "count": torch.zeros(3, dtype=torch.int16),
            "expanded": torch.zeros(3).expand(2, 3),
            "history": torch.zeros(0),
            "late": None,
        }.items():
            self.register_buffer(name, value)
        self.register_buffer("cache", None, persistent=False)
        self.register_buffer("triangle", torch.ones(window, window).tril(), persistent=False)
        self.register_buffer("table", torch.zeros(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: Any = x.detach().flatten()[:3]
        odd: Any = self
        odd.scalar += 1
        odd.mask ^= seen > 1
        for name in ("phase", "phases", "brief", "count"):
            getattr(self, name).add_(seen.to(getattr(self, name).dtype))
        odd.small = (odd.small.float() + seen).to(torch.float8_e4m3fn)
        odd.expanded = (odd.expanded + seen).mean(0).expand(2, 3)
        odd.history = torch.cat([odd.history, seen])
        odd.late = seen.clone() if odd.late is None else odd.late + seen
        odd.cache = seen.clone() if odd.cache is None else odd.cache + seen
        if not hasattr(self, "unforeseen"):
            self.register_buffer("unforeseen", torch.zeros(3))
        odd.unforeseen += seen
        return self.inner(x + odd.late + odd.cache + odd.unforeseen)  # type: ignore[no-any-return]


def bits_of(experiment: Experiment) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    return {
        name: (
            tensor.dtype,
            tensor.shape,
            bytes(tensor.detach().clone().contiguous().flatten().view(torch.uint8).numpy()),
        )
        for name, tensor in state_of(experiment).capture()[0].items()
        if tensor.numel()
    }


def test_buffers_of_every_format_and_origin_come_back_and_go_on():
    source, target = make(Odd()), make(Odd())
    train(source)
    moved(source, target)
    assert bits_of(target) == bits_of(source)
    train(source, 1)
    train(target, 1)
    assert bits_of(target) == bits_of(source)
    model: Any = target.model
    assert set(model.state_dict()) == set(source.model.state_dict())
    assert model.same.data_ptr() == model.inner.weight[0].data_ptr()


def test_a_buffer_outside_of_the_state_dict_follows_a_file_that_makes_it_in_another_form():
    source, target = make(Odd(window=3)), make(Odd(window=5))
    train(source)
    moved(source, target)
    assert target.model.triangle.shape == (5, 5)


def test_a_buffer_inside_of_the_state_dict_does_not():
    source, target = make(Odd(length=2)), make(Odd(length=4))
    train(source)
    with pytest.raises(Rejected, match=r"model/table is float32 \[2\] in it and float32 \[4\] here"):
        moved(source, target)


class Told:
    """Keeps what it was told to."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["value"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.eye(2).to_sparse(), r"state\.told\.value is a torch\.sparse_coo tensor"),
        (object(), r"state\.told\.value is a object"),
        ({(1, 2): 3}, r"has the key \(1, 2\)"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_what_no_checkpoint_can_hold_is_refused_before_anything_starts(value: Any, says: str):
    with pytest.raises(ValueError, match=says):
        state_of(make(state={"told": Told(value)})).check()


def test_a_part_of_the_state_that_takes_no_more_what_was_kept_is_named():
    with pytest.raises(RunError, match=r"(?s)^state\['best'\] does not take .* \(RuntimeError: .*\): undo"):
        moved(make(state={"best": Told(1)}), make(state={"best": nn.Linear(1, 1)}))


def test_a_scheduler_of_torch_among_the_state_goes_on():
    experiments = [make(), make()]
    schedulers = [torch.optim.lr_scheduler.StepLR(one.optimizer, 2, gamma=0.5) for one in experiments]
    states = [
        Experiment(
            model=one.model,
            loss=loss,
            optimizer=one.optimizer,
            stages=one.stages,
            steps=3,
            state={"s": scheduler},
        )
        for one, scheduler in zip(experiments, schedulers, strict=True)
    ]
    for one in states:
        state_of(one)
    for _ in range(3):
        train(states[0], 1)
        schedulers[0].step()
    moved(*states)
    assert schedulers[1].state_dict() == schedulers[0].state_dict()
    assert states[1].optimizer.param_groups[0]["lr"] == states[0].optimizer.param_groups[0]["lr"] == 0.05
