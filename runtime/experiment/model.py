"""What an experiment file returns: plain data that says what is trained, on what, for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Batch", "Evaluation", "Experiment", "Loader", "Loss", "Reached", "Stage", "Stateful"]

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The examples of one microbatch.

    `data` is any nesting of tuples, lists and dicts of CPU tensors; the runtime moves it to the device.
    `num_tokens` unset means that the data has no tokens: the rate is then `rate/examples`.
    """

    data: Any
    num_examples: int
    num_tokens: int | None = None


class Loader(Protocol):
    """Examples in an order that is computed, never remembered.

    Batch *i* depends on *i* and on what the loader was made with, so that a resume asks for the next
    batch without having read those before it.
    """

    def batch(self, index: int) -> Batch:
        """Return batch `index` (from 0) of this loader."""
        ...


class Stateful(Protocol):
    """Anything else that the loss keeps across steps: a running average, a best value, a patience."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any], /) -> None: ...


Loss = Callable[["nn.Module", Any], "torch.Tensor"]
"""(model, batch data on the device) -> a scalar tensor. It may call `metric(name, value, **metadata)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A condition on the value of an evaluation: exactly one of the two bounds is set."""

    evaluation: str
    metric: str = "eval/loss"
    at_most: float | None = None
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the curriculum: which loader training draws from, and when it ends.

    `until` is the step at whose boundary the next stage begins, or a condition on an evaluation.
    Unset, the stage lasts to the end of the run; only the last stage may leave it unset, and must.
    """

    name: str
    loader: Loader
    until: int | Reached | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One pass over held-out batches 0..batches-1, at every boundary that is a multiple of `every`
    and at the last one; at boundary 0 only if `at_start`. `loss` unset means the experiment's."""

    name: str
    loader: Loader
    every: int
    batches: int
    loss: Loss | None = None
    at_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The whole of what is trained.

    `learning_rate` maps the number of an update (from 0) to its rate; unset, the optimiser's own rates
    stay. It is a function of the step alone, so that no resume can be one step early or late.
    `checkpoint_every` unset means only at the end and on a signal. `clip_norm` unset means no clipping
    (the gradient's norm is then measured, not changed). `state` names what else the loss keeps.
    """

    model: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    stages: Sequence[Stage]
    steps: int
    learning_rate: Callable[[int], float] | None = None
    evaluations: Sequence[Evaluation] = ()
    microbatches: int = 1
    checkpoint_every: int | None = None
    precision: Precision = "fp32"
    clip_norm: float | None = None
    seed: int = 0
    compile: bool = False
    state: Mapping[str, Stateful] = field(default_factory=dict)
