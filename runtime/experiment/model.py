"""What an experiment file returns: plain data that says what is trained, on what, for how long."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from runtime.errors import Rejected
from runtime.experiment._checks import (
    check_callable,
    check_instance,
    check_integer,
    check_loader,
    check_name,
    check_one_of,
    check_optional_integer,
    is_finite,
    shown,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Batch", "Evaluation", "Experiment", "Loader", "Loss", "Precision", "Reached", "Stage", "Stateful"]

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

    def __post_init__(self) -> None:
        check_integer("Batch.num_examples", self.num_examples, at_least=1)
        check_optional_integer("Batch.num_tokens", self.num_tokens, at_least=1, unset="data without tokens")


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

    def state_dict(self) -> Mapping[str, Any]:
        """Return what is kept: JSON values and tensors, nested in dicts and lists."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue from what `state_dict` returned."""
        ...


Loss = Callable[["nn.Module", Any], "torch.Tensor"]
"""(model, batch data on the device) -> a scalar tensor. It may call `metric(name, value, **metadata)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A condition on the value of an evaluation: exactly one of the two bounds is set."""

    evaluation: str
    metric: str = "eval/loss"
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        check_name("Reached.evaluation", self.evaluation)
        check_name("Reached.metric", self.metric)
        bounds = [bound for bound in (self.at_most, self.at_least) if bound is not None]
        if len(bounds) != 1 or not is_finite(bounds[0]):
            raise Rejected(
                f"Reached takes exactly one finite bound, got at_most={shown(self.at_most)} and "
                f"at_least={shown(self.at_least)}: pass at_most= for a loss, at_least= for an accuracy"
            )


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the curriculum: which loader training draws from, and when it ends.

    `until` is the step at whose boundary the next stage begins, or a condition on an evaluation. A run that
    is asked for fewer steps never gets there. Unset, the stage lasts to the end of the run; only the last
    stage may leave it unset, and must.
    """

    name: str
    loader: Loader
    until: int | Reached | None = None

    def __post_init__(self) -> None:
        check_name("Stage.name", self.name)
        check_loader(f"the loader of stage {self.name!r}", self.loader)
        if self.until is not None and not isinstance(self.until, Reached):
            note = "or Reached(...), or None in the last stage"
            check_integer(f"until of stage {self.name!r}", self.until, at_least=1, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One pass over held-out batches 0..batches-1.

    It runs at every boundary that is a multiple of `every` and at the last one; at boundary 0 only if
    `at_start`. `loss` unset means the experiment's.
    """

    name: str
    loader: Loader
    every: int
    batches: int
    loss: Loss | None = None
    at_start: bool = False

    def __post_init__(self) -> None:
        check_name("Evaluation.name", self.name)
        check_loader(f"the loader of evaluation {self.name!r}", self.loader)
        check_integer(f"every of evaluation {self.name!r}", self.every, at_least=1)
        check_integer(f"batches of evaluation {self.name!r}", self.batches, at_least=1)
        if self.loss is not None:
            check_callable(f"loss of evaluation {self.name!r}", self.loss, "(model, data) -> loss, or None")
        check_instance(f"at_start of evaluation {self.name!r}", self.at_start, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The whole of what is trained.

    `learning_rate` maps the number of an update (from 0) to its rate; unset, the optimiser's own rates
    stay. It is a function of the step alone, so that no resume can be one step early or late.
    `checkpoint_every` unset means only at the end and on a signal. The last `keep_last` checkpoints are kept,
    and the first at or after each multiple of `keep_every` for ever; unset, none of them. `clip_norm` unset
    means no clipping (the gradient's norm is then measured, not changed). `state` names what else the loss
    keeps.
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
    keep_last: int = 2
    keep_every: int | None = None
    precision: Precision = "fp32"
    clip_norm: float | None = None
    seed: int = 0
    compile: bool = False
    state: Mapping[str, Stateful] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be trained.

        Raises:
            Rejected: a field is wrong; one line says which, what it is and what it may be.
        """
        self._check_numbers()
        self._check_parts()
        object.__setattr__(self, "stages", _sequence("stages", self.stages, Stage))
        object.__setattr__(self, "evaluations", _sequence("evaluations", self.evaluations, Evaluation))
        if not self.stages:
            raise Rejected('stages must hold at least one stage, got none: add Stage("train", loader)')
        _check_unique("stages", [stage.name for stage in self.stages])
        _check_unique("evaluations", [evaluation.name for evaluation in self.evaluations])
        self._check_curriculum()

    def _check_numbers(self) -> None:
        check_integer("steps", self.steps, at_least=1)
        check_integer("microbatches", self.microbatches, at_least=1)
        check_optional_integer(
            "checkpoint_every", self.checkpoint_every, at_least=1, unset="only at the end and on a signal"
        )
        check_integer("keep_last", self.keep_last, at_least=2, note="the newest may turn out to be damaged")
        check_optional_integer("keep_every", self.keep_every, at_least=1, unset="that none is kept for ever")
        check_one_of("precision", self.precision, get_args(Precision))
        check_integer("seed", self.seed, at_least=0)
        check_instance("compile", self.compile, bool)
        if self.clip_norm is not None and not (is_finite(self.clip_norm) and self.clip_norm > 0):
            raise Rejected(
                f"clip_norm must be a finite number above 0, got {shown(self.clip_norm)}: None means none"
            )

    def _check_parts(self) -> None:
        from torch import nn, optim

        check_instance("model", self.model, nn.Module)
        check_callable("loss", self.loss, "(model, data) -> a scalar tensor")
        check_instance("optimizer", self.optimizer, optim.Optimizer)
        _check_step(self.optimizer)
        if self.learning_rate is not None:
            check_callable("learning_rate", self.learning_rate, "(number of an update, from 0) -> its rate")
        check_instance("state", self.state, Mapping)
        for name, value in self.state.items():
            check_name("a name in state", name)
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise Rejected(
                    f"state[{name!r}] must have state_dict and load_state_dict, got {shown(value)}"
                )
        _check_devices(self.model)
        _check_parameters(self.model, self.optimizer)

    def _check_curriculum(self) -> None:
        evaluations = {evaluation.name for evaluation in self.evaluations}
        reached = 0
        for stage in self.stages[:-1]:
            if stage.until is None:
                raise Rejected(
                    f"stage {stage.name!r} must say until when it lasts: only the last stage may not"
                )
            if isinstance(stage.until, Reached):
                _check_reached(stage.name, stage.until, evaluations)
            elif stage.until <= reached:
                raise Rejected(
                    f"stage {stage.name!r} must end after step {reached}, where the one before it ends, got "
                    f"until={stage.until}"
                )
            else:
                reached = stage.until
        last = self.stages[-1]
        if last.until is not None:
            raise Rejected(
                f"the last stage {last.name!r} must leave until unset, got {shown(last.until)}: "
                "it lasts to the end"
            )


def _sequence(field: str, values: object, accepted: type) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise Rejected(f"{field} must be a list of {accepted.__name__}, got {shown(values)}")
    for value in values:
        check_instance(f"every one of {field}", value, accepted)
    return tuple(values)


def _check_unique(field: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Rejected(f"{field} must have different names, got {twice!r} twice")


def _check_reached(stage: str, until: Reached, evaluations: set[str]) -> None:
    if until.evaluation not in evaluations:
        accepted = ", ".join(sorted(evaluations)) or "none: the experiment has no evaluations"
        raise Rejected(
            f"stage {stage!r} waits for an evaluation of the experiment, got {until.evaluation!r}; "
            f"accepted: {accepted}"
        )


def _check_devices(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise Rejected(f"the model must be on the CPU, got {name} on {tensor.device}: --device moves it")


def _check_step(optimizer: torch.optim.Optimizer) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise Rejected(
            f"optimizer must take a step without a closure, got {type(optimizer).__name__}: it computes the "
            "loss several times a step, which no run does; use another one"
        )


def _check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    from torch.nn.parameter import is_lazy

    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise Rejected(
                f"the model's parameter {name} has no shape yet: call the model once in experiment(), before "
                "the optimizer is made"
            )
    if not any(group["params"] for group in optimizer.param_groups):
        raise Rejected(
            "optimizer must train at least one parameter, got none: make it from model.parameters()"
        )
    own = {id(parameter) for parameter in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in own:
                raise Rejected(
                    f"optimizer must train parameters of the model, got one of shape "
                    f"{list(parameter.shape)} in group {number} that is none: make it from model.parameters()"
                )
