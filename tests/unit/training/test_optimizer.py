"""Whatever kind of optimiser: two updates, a resume into a fresh one, two more: the bits of four in a row."""

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
from runtime.training.position import Position
from runtime.training.precision import Precision
from runtime.training.state import TrainingState
from runtime.training.update import Updater

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")


class Words:
    def batch(self, index: int) -> Batch:
        return Batch(torch.tensor([[index % 4, 1], [2, 3]]), 2)


class Net(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4, sparse=sparse)
        self.hidden = nn.Linear(4, 4, bias=not sparse)
        self.out = nn.Linear(4, 1, bias=not sparse)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(self.embed(words))))  # type: ignore[no-any-return]


class Attempt:
    """One attempt at a run of four updates."""

    def __init__(self, optimizer: Callable[[nn.Module], torch.optim.Optimizer], model: nn.Module) -> None:
        self.experiment = Experiment(
            model=model,
            loss=lambda model, data: model(data).float().square().mean(),
            optimizer=optimizer(model),
            stages=[Stage("only", Words())],
            steps=4,
            clip_norm=0.1,
        )
        precision = Precision("fp32", CPU)
        self.state = TrainingState(self.experiment, precision)
        self.state.check()
        self.update = Updater(self.experiment, model=model, device=CPU, precision=precision)

    def train(self, steps: range) -> list[Any]:
        points = [self.update(Position(step=step)).points() for step in steps]
        return [point for step in points for point in step if not point[0].startswith("rate/")]

    def resume_from(self, other: Attempt) -> None:
        tensors, data = other.state.capture()
        snapshots = Snapshots(expected_bytes=0)
        layout, _ = snapshots.take(tensors)
        files = [snapshots.view(shard.start, shard.size_bytes) for shard in layout.shards]
        buffer = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)  # one, as the reader's is
        ends = [sum(map(len, files[: number + 1])) for number in range(len(files))]
        shards = [buffer[end - len(file) : end] for file, end in zip(files, ends, strict=True)]
        tensors, data = read_tensors(shards, layout.whole), json.loads(encode_json(data))
        self.buffer = buffer
        self.state.fit(tensors, data, source="here")
        self.state.restore(tensors, data)


class Nested(torch.optim.Optimizer):
    """Keeps fp32 values in lists and dicts, whole numbers, and something that belongs to no parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "scales": (torch.ones(2), 0.5), "mask": torch.ones(3)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # torch's has two forms
        assert closure is None
        own: Any = self.state  # torch takes any key, and says that it takes tensors
        own["all"]["steps"] = own["all"].get("steps", torch.zeros((), dtype=torch.int64)) + 1
        for parameter in (p for group in self.param_groups for p in group["params"]):
            state = self.state[parameter]
            state.setdefault("factors", [torch.zeros(3), {"deep": torch.full((2,), 1 / 3)}])
            state.setdefault("seen", torch.zeros(2, dtype=torch.uint8))
            state["factors"][0].add_(parameter.grad.float().mean() / 3)
            state["seen"].add_(1)
            amount = state["factors"][0].sum() + state["factors"][1]["deep"][0] + own["all"]["steps"] / 7
            parameter.sub_(amount * parameter.grad)


def shuffled(model: nn.Module) -> list[nn.Parameter]:
    """As a set of tensors has them: in another order in each process."""
    order = torch.randperm(5, generator=ORDER).tolist()
    return [list(model.parameters())[index] for index in order]


ORDER = torch.Generator().manual_seed(0)

KINDS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    **{
        name: lambda model, name=name: getattr(torch.optim, name)(model.parameters(), lr=0.1)  # type: ignore[misc] # a default binds
        for name in (
            *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam"),
            *("RMSprop", "Rprop", "SGD"),
        )
    },
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, fused=True),
    "a rate in a tensor": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1)),
    "nested": lambda model: Nested(model.parameters()),
    "a set": lambda model: torch.optim.AdamW(shuffled(model), lr=0.1),
}


def continued(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer], make: Callable[[], nn.Module]
) -> Attempt:
    """Compare a resumed run with an unbroken one, and return the resumed one."""
    attempts = []
    for _ in range(3):
        torch.manual_seed(0)
        attempts.append(Attempt(optimizer, make()))
    unbroken, killed, resumed = attempts
    points = unbroken.train(range(4))
    assert killed.train(range(2)) == points[: len(points) // 2]
    resumed.resume_from(killed)
    assert resumed.train(range(2, 4)) == points[len(points) // 2 :]
    ours, theirs = resumed.state.capture(), unbroken.state.capture()
    assert {name for name in ours[0] if name.startswith("model/")} == {
        name for name in theirs[0] if name.startswith("model/")
    }
    assert all(torch.equal(ours[0][name], theirs[0][name]) for name in ours[0] if name.startswith("model/"))
    assert state_by_name(resumed) == state_by_name(unbroken)
    return resumed


def state_by_name(attempt: Attempt) -> dict[str, str]:
    """The optimiser's state by the names of its parameters, every number in full."""
    names = {id(parameter): name for name, parameter in attempt.experiment.model.named_parameters()}
    torch.set_printoptions(precision=20, threshold=10_000)
    try:
        return {
            names.get(id(key), str(key)): repr(value)
            for key, value in attempt.experiment.optimizer.state.items()
        }
    finally:
        torch.set_printoptions(profile="default")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resume_goes_on_with_the_same_bits(kind: str, dtype: torch.dtype):
    continued(KINDS[kind], lambda: Net().to(dtype))


def test_a_resume_goes_on_with_the_same_bits_of_sparse_gradients():
    continued(
        lambda model: torch.optim.SparseAdam(model.get_submodule("embed").parameters(), lr=0.1),
        lambda: Net(sparse=True),
    )


@pytest.mark.parametrize("kind", ["AdamW", "nested", "a rate in a tensor"])
def test_nothing_of_a_resumed_run_keeps_the_memory_that_the_checkpoint_was_read_into(kind: str):
    resumed = continued(KINDS[kind], Net)
    inside = resumed.buffer.untyped_storage().data_ptr()
    optimizer = resumed.experiment.optimizer
    state = [*optimizer.state.values(), *optimizer.param_groups, *resumed.experiment.model.parameters()]
    assert inside not in {tensor.untyped_storage().data_ptr() for tensor in tensors_in(state)}


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def test_a_group_that_training_adds_is_no_state_to_save():
    attempt = Attempt(lambda model: torch.optim.SGD(list(model.parameters())[:1], lr=0.1), Net())
    attempt.experiment.optimizer.add_param_group({"params": list(attempt.experiment.model.parameters())[1:]})
    with pytest.raises(RunError, match="became SGD of 1 and 4 tensors and was made as SGD of 1 tensors"):
        attempt.state.capture()


def test_a_parameter_that_is_trained_no_more_or_elsewhere_is_named():
    def all_but(*left_out: str) -> Callable[[nn.Module], torch.optim.Optimizer]:
        return lambda model: torch.optim.SGD(
            [p for name, p in model.named_parameters() if name not in left_out], lr=0.1
        )

    source, other = Attempt(all_but("out.bias"), Net()), Attempt(all_but("hidden.bias"), Net())
    with pytest.raises(Rejected, match=r"SGD with hidden.bias in group 0 in it and SGD without here"):
        other.resume_from(source)
