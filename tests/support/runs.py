"""A small run with everything that a resume can get wrong, and what two such runs must have in common."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import torch

from runtime.checkpoints.location import open_location
from tests.support.strict_json import strict_lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.forge import CallPlan, Forge, ForkedRun

SLUG = "small"

EXPERIMENT = """
    from dataclasses import dataclass

    import torch
    from torch import nn

    from sexpgpu import Batch, Evaluation, Experiment, Stage, data, metric


    @dataclass(frozen=True)
    class Knobs:
        steps: int = 12
        eval_every: int = 4
        checkpoint_every: int = 5
        microbatches: int = 2
        precision: str = "fp32"
        optimizer: str = "AdamW"
        compile: bool = False
        noise: str = "quiet"
        workers: int = 0
        seed: int = 3


    class Examples:
        "Ragged batches whose numbers come from the index and from the generators that the run seeds."

        def __init__(self, shift):
            self.shift = shift

        def batch(self, index):
            generator = torch.Generator().manual_seed(1000 * self.shift + index)
            size = 2 + index % 3
            x = torch.randn(size, 4, generator=generator) + torch.rand(())
            return Batch((x, x.sum(1, keepdim=True)), size, num_tokens=4 * size)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = nn.Linear(4, 8)
            self.norm = nn.BatchNorm1d(8)
            self.drop = nn.Dropout(0.25)
            self.out = nn.Linear(8, 1)

        def forward(self, x):
            return self.out(self.drop(self.norm(torch.relu(self.hidden(x)))))


    class Best:
        "The best loss of any microbatch, and how many were worse since."

        def __init__(self):
            self.value, self.patience = float("inf"), 0

        def see(self, value):
            self.value, self.patience = (value, 0) if value < self.value else (self.value, self.patience + 1)

        def state_dict(self):
            return {"value": self.value, "patience": self.patience}

        def load_state_dict(self, state):
            self.value, self.patience = state["value"], state["patience"]


    def experiment(knobs):
        best = Best()

        def loss(model, examples):
            x, y = examples
            error = (model(x) - y).square()
            value = error.mean()
            best.see(float(value.detach()))
            metric("error/max", error.max())
            metric("best", best.value, part="all")
            if knobs.noise == "loud":
                for name in "abc":
                    metric("noise", torch.rand(()), name=name)
            return value

        model = Net()
        options = {"lr": 0.05, "fused": True} if knobs.optimizer == "fused" else {"lr": 0.05}
        kind = torch.optim.SGD if knobs.optimizer == "SGD" else torch.optim.AdamW
        stages = [(f"{name}", Examples(shift)) for shift, name in enumerate(("easy", "medium", "hard"))]
        stages = [(name, data.Workers(examples, processes=knobs.workers)) for name, examples in stages]
        return Experiment(
            model=model,
            loss=loss,
            optimizer=kind(model.parameters(), **options),
            learning_rate=lambda step: 0.05 / (1 + step),
            stages=[
                Stage(name, loader, until=until)
                for (name, loader), until in zip(stages, (4, 8, None))
            ],
            evaluations=[
                Evaluation(name="held-out", loader=Examples(7), every=knobs.eval_every, batches=3),
                Evaluation(
                    name="other", loader=Examples(8), every=knobs.eval_every, batches=2, at_start=True
                ),
            ],
            steps=knobs.steps,
            microbatches=knobs.microbatches,
            checkpoint_every=knobs.checkpoint_every,
            precision=knobs.precision,
            clip_norm=0.5,
            compile=knobs.compile,
            seed=knobs.seed,
            state={"best": best},
        )
"""


@dataclass(slots=True)
class SmallRun:
    """One slug, its location and its event file; each `go` is an attempt."""

    forge: Forge
    folder: Path
    location: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    source: str = EXPERIMENT
    flags: tuple[str, ...] = ()
    slug: str = SLUG

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.location = self.location or str(self.folder / "location")
        (self.folder / "small.py").write_text(dedent(self.source))

    @property
    def file(self) -> Path:
        return self.folder / "events.jsonl"

    def arguments(self, *flags: str) -> list[str]:
        return [
            "run", "small.py", "--slug", self.slug, "--location", self.location,
            "--metrics", f"jsonl:{self.file}", "--json", *self.flags, *flags,
        ]  # fmt: skip

    def start(
        self, *flags: str, calls: CallPlan | None = None, env: Mapping[str, str] | None = None
    ) -> ForkedRun:
        everything = {**self.env, **(env or {})}
        return self.forge.start(self.arguments(*flags), folder=self.folder, env=everything, calls=calls)

    def go(self, *flags: str, code: int = 0, **options: Any) -> ForkedRun:
        """Make an attempt, wait for it, and see that it ended with `code`."""
        run = self.start(*flags, **options)
        assert run.wait() == code, run.err.read_text()
        return run

    def events(self) -> list[dict[str, Any]]:
        """Every line of the file, each read strictly; the file must not be torn."""
        return strict_lines(self.file.read_bytes())

    def outcome(self) -> Outcome:
        """What the run came to."""
        found = open_location(self.location, {**os.environ, **self.env}).find(slug=self.slug)
        assert found.checkpoint is not None
        assert found.refused == ()
        data = found.checkpoint.data
        return Outcome(
            step=found.checkpoint.step,
            tensors={name: tensor.clone() for name, tensor in found.checkpoint.tensors.items()},
            state={key: data[key] for key in ("step", "stage", "loader", "boundary", "state")},
            points=newest_points(self.events()),
        )


@pytest.fixture
def small(forge: Forge, tmp_path: Path) -> SmallRun:
    """A run with a location of its own."""
    return SmallRun(forge, tmp_path)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Final parameters, optimiser state, all else that a checkpoint holds, and each point's newest value."""

    step: int
    tensors: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    points: Mapping[Any, Any]

    def assert_equals(self, other: Outcome) -> None:
        """Bit for bit: no tolerance anywhere."""
        assert self.step == other.step
        assert self.state == other.state
        assert self.tensors.keys() == other.tensors.keys()
        different = [
            name for name, tensor in self.tensors.items() if not _same_bits(tensor, other.tensors[name])
        ]
        assert different == []
        assert self.points == other.points


def newest_points(events: list[dict[str, Any]]) -> dict[Any, Any]:
    """The last copy of each point by (step, name, metadata); rates are times, and no two runs share them."""
    return {point_key(event): event["value"] for event in events if is_point(event)}


def is_point(event: Mapping[str, Any]) -> bool:
    return event["kind"] == "metric" and not event["name"].startswith("rate/")


def point_key(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return event["step"], event["name"], *sorted(event["metadata"].items())


def notes(events: list[dict[str, Any]]) -> list[str]:
    return [event["annotation"] for event in events if event["kind"] == "annotation"]


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    ours, theirs = (
        tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor for tensor in (one, other)
    )
    return torch.equal(ours, theirs)
