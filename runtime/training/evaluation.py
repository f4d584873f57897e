"""One pass over held-out batches that leaves training as it was."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from runtime.training.batches import check_loss, to_device
from runtime.training.determinism import reseed, seeds_of
from runtime.training.metrics import Collector, Pending, collecting, held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.experiment.model import Evaluation, Experiment
    from runtime.training.precision import Precision

__all__ = ["Evaluator"]


class Evaluator:
    """Makes the evaluations of one attempt."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        model: torch.nn.Module,
        device: torch.device,
        precision: Precision,
        should_stop: Callable[[], bool],
        rank: int = 0,
    ) -> None:
        self._experiment = experiment
        self._model = model
        self._device = device
        self._precision = precision
        self._should_stop = should_stop
        self._rank = rank

    def __call__(self, evaluation: Evaluation, *, step: int, stage: str) -> Pending | None:
        """Return the metrics of one whole pass; None when a signal came, after which nothing of it counts."""
        collector = Collector({"split": "eval", "stage": stage, "pass": evaluation.name})
        kept = copy.deepcopy({name: part.state_dict() for name, part in self._experiment.state.items()})
        buffers = _buffers(self._experiment.model)
        finished = False
        with _evaluating(self._experiment.model), torch.no_grad():
            try:
                finished = self._run(evaluation, step, collector)
            except Exception:
                if not self._should_stop():  # else a worker of the loader may have got the signal first
                    raise
        if not finished:
            for name, state in kept.items():
                self._experiment.state[name].load_state_dict(dict(state))
            _restore_buffers(buffers)  # a count of calls: the pass is made again, whole
            return None
        loss = collector.own("eval/loss")
        return Pending(sorted(collector.take(), key=lambda value: value[0] is not loss))  # the loss first

    def _run(self, evaluation: Evaluation, step: int, collector: Collector) -> bool:
        for index in range(evaluation.batches):
            if self._should_stop():
                return False
            self._batch(evaluation, step, index, collector)
        return True

    def _batch(self, evaluation: Evaluation, step: int, index: int, collector: Collector) -> None:
        drawn, computed = seeds_of(
            seed=self._experiment.seed,
            rank=self._rank,
            step=step,
            microbatch=index,
            purpose=f"evaluation {evaluation.name}",
        )
        reseed(drawn)
        batch = evaluation.loader.batch(index)
        reseed(computed)  # one that keeps its batches draws in the first pass of each attempt alone
        collector.weight = batch.num_examples
        loss = evaluation.loss or self._experiment.loss
        with collecting(collector), self._precision.autocast():
            value = check_loss(loss(self._model, to_device(batch.data, self._device)))
        collector.own_value("eval/loss", held(value))


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and afterwards into the mode that each had.

    Both by `train`, which a module may have made its own: adapters merge their weights there, and part them.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, training in modes:
            module.training = training


_Kept = tuple[dict[str, Any], str, "torch.Tensor | None", "torch.Tensor | None", int]


def _buffers(model: torch.nn.Module) -> list[_Kept]:
    """Where each buffer is, a copy and its version; a model may put another tensor into the place."""
    return [
        (module._buffers, name, buffer, *_copied(buffer))  # noqa: SLF001 - torch has no other way to the place
        for module in model.modules()
        for name, buffer in module._buffers.items()  # noqa: SLF001
    ]


def _copied(buffer: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    return (None, 0) if buffer is None else (buffer.clone(), buffer._version)  # noqa: SLF001


def _restore_buffers(kept: list[_Kept]) -> None:
    with torch.no_grad():
        for place, name, buffer, before, version in kept:
            place[name] = buffer
            # Only what was changed in place: an expanded buffer, which nothing can change so, takes no copy.
            if buffer is not None and before is not None and buffer._version != version:  # noqa: SLF001
                buffer.copy_(before)
