"""What `overhead.py` trains, both ways: a small language model, 20 to 40 ms a step on one core.

A loader that is asked for the first batch of a turn waits at a gate, so that the bare loops and ours
take turns; how long the turn before it took is told through the gate.
"""

# ruff: noqa: D101, D102, N803, N806 - an experiment file; shapes: B batch, T time, V vocabulary

import os
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sexpgpu import Batch, Experiment, Stage, metric, models

BLOCK = 100  # steps of a round, and between two checkpoints
TURN = 5  # steps
CLIP_NORM = 1.0
VOCABULARY = 256


@dataclass(frozen=True)
class Knobs:
    steps: int = BLOCK
    checkpoint_every: int = BLOCK
    seed: int = 0


class Gate:
    """Tells how long the last turn took and waits to be let through; open where no gate was asked for."""

    def __init__(self) -> None:
        ends = os.environ.get("OVERHEAD_GATE")
        self.ends = tuple(map(int, ends.split(","))) if ends else None
        self.opened = 0.0

    def wait(self) -> None:
        if self.ends is None:
            return
        reader, writer = self.ends
        os.write(writer, f"{time.perf_counter() - self.opened}\n".encode())
        if not os.read(reader, 1):
            os._exit(1)  # the benchmark was killed
        self.opened = time.perf_counter()


class Windows:
    """Random bytes: what is trained on costs nothing to draw, in either loop."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.tokens = torch.randint(VOCABULARY, (64, 8, 65), generator=torch.Generator().manual_seed(1))

    def batch(self, index: int) -> Batch:
        if index % TURN == 0:
            self.gate.wait()
        tokens_BT = self.tokens[index % 64]
        return Batch(tokens_BT, num_examples=8, num_tokens=8 * 64)


def loss(model: nn.Module, tokens_BT: Tensor) -> Tensor:
    logits_BTV = model(tokens_BT[:, :-1])
    value = cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
    metric("bits", value / 0.6931)
    metric("logits/max", logits_BTV.max(), part="all")
    return value


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return models.Transformer(vocabulary=VOCABULARY, width=128, depth=3, heads=4, dropout=0.1)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


def learning_rate(step: int) -> float:
    return 1e-3 * min(1.0, (step + 1) / 100)


def experiment(knobs: Knobs) -> Experiment:
    model = make_model()
    return Experiment(
        model=model,
        loss=loss,
        optimizer=make_optimizer(model),
        learning_rate=learning_rate,
        stages=[Stage("only", Windows(Gate()))],
        steps=knobs.steps,
        checkpoint_every=knobs.checkpoint_every,
        clip_norm=CLIP_NORM,
        seed=knobs.seed,
    )
