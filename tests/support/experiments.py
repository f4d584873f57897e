"""Experiment files for tests: a small one, and projects of several files."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["SMALL", "write_project"]

SMALL = """
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from sexpgpu import Batch, Evaluation, Experiment, Reached, Stage, optim


@dataclass(frozen=True)
class Knobs:
    steps: int = 8
    eval_every: int = 4
    rate: float = 0.5
    mode: Literal["easy", "hard"] = "easy"
    noisy: bool = False
    name: str = "plain"
    seed: int = 0


VARIANTS = {"tiny": Knobs(steps=2, rate=0.25), "long": Knobs(steps=100)}


class Ones:
    def batch(self, index):
        return Batch(torch.full((2, 3), float(index)), 2, num_tokens=6)


def loss(model, data):
    return model(data).mean()


def experiment(knobs: Knobs) -> Experiment:
    model = nn.Linear(3, 1)
    return Experiment(
        model=model,
        loss=loss,
        optimizer=optim.adamw(model),
        stages=[Stage("easy", Ones(), until=knobs.steps // 2), Stage("hard", Ones())],
        evaluations=[Evaluation(name="eval", loader=Ones(), every=knobs.eval_every, batches=3)],
        steps=knobs.steps,
        microbatches=2,
        checkpoint_every=4,
        seed=knobs.seed,
    )
"""


def write_project(root: Path, files: Mapping[str, str]) -> Path:
    """Write `files` (paths to sources) under `root`, and return the first one's path."""
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source).lstrip("\n"))
    return root / next(iter(files))
