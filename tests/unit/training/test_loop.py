# ruff: noqa: ARG002 - stand-ins have the signatures of what they stand for
from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from runtime.events.kinds import Annotation, Metric
from runtime.events.stream import EventStream
from runtime.events.targets import MemoryTarget
from runtime.experiment.model import Batch, Evaluation, Experiment, Stage
from runtime.training.evaluation import Evaluator
from runtime.training.interrupts import Interrupts
from runtime.training.loop import Loop
from runtime.training.position import Position
from runtime.training.precision import Precision
from runtime.training.update import Updater

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.events.kinds import Point

CPU = torch.device("cpu")


class Ones:
    def batch(self, index: int) -> Batch:
        return Batch(torch.ones(2, 3), 2)


class Quiet:
    def started(self, step: int) -> None: ...
    def updated(self, step: int, points: Sequence[Point]) -> None: ...
    def evaluating(self, name: str) -> None: ...
    def close(self) -> None: ...


class Gone(Quiet):
    def updated(self, step: int, points: Sequence[Point]) -> None:
        raise BrokenPipeError


class Taking:
    """Takes checkpoints, except while it is told to be busy."""

    def __init__(self, busy_at: Sequence[int] = ()) -> None:
        self.busy_at = busy_at
        self.taken: list[Position] = []

    def offer(self, position: Position) -> bool:
        if position.step in self.busy_at:
            return False
        self.taken.append(position)
        return True

    def moved_on(self, step: int) -> None: ...


class Parts:
    """A loop of eight steps, two stages and an evaluation, and all that it is made of."""

    def __init__(self, *, progress: Any = None, checkpoints: Any = None, **changed: Any) -> None:
        self.target = MemoryTarget()
        self.stream = EventStream([self.target])
        self.interrupts = Interrupts(notice_s=20)
        model = nn.Linear(3, 1)
        fields: dict[str, Any] = {
            "model": model,
            "loss": lambda model, data: model(data).square().mean(),
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
            "stages": [Stage("easy", Ones(), until=4), Stage("hard", Ones())],
            "evaluations": [Evaluation(name="e", loader=Ones(), every=4, batches=2)],
            "steps": 8,
            "checkpoint_every": 2,
        }
        self.experiment = Experiment(**(fields | changed))
        precision = Precision("fp32", CPU)
        self.position = Position()
        self.loop = Loop(
            self.experiment,
            position=self.position,
            update=Updater(self.experiment, model=model, device=CPU, precision=precision),
            evaluate=Evaluator(
                self.experiment,
                model=model,
                device=CPU,
                precision=precision,
                should_stop=self.interrupts.asked,
            ),
            stream=self.stream,
            interrupts=self.interrupts,
            progress=progress or Quiet(),
            checkpoints=checkpoints,
        )

    def told(self) -> list[str]:
        self.stream.close(timeout_s=60)
        return [
            f"{event.step} {event.name if isinstance(event, Metric) else event.text}"
            for event in self.target.events
            if isinstance(event, Annotation) or (isinstance(event, Metric) and event.name.endswith("loss"))
        ]


def test_a_boundary_evaluates_then_changes_the_stage_then_updates():
    parts = Parts()
    assert parts.loop.run()
    told = parts.told()
    assert told[4:8] == ["4 eval/loss", "4 stage easy -> hard", "4 train/loss", "5 train/loss"]
    assert told[-1] == "8 eval/loss"
    assert sum("train/loss" in line for line in told) == 8


def test_a_checkpoint_that_is_due_while_one_is_in_flight_is_taken_at_the_next_boundary():
    checkpoints = Taking(busy_at=(4, 5))
    steps: list[int] = []
    checkpoints.taken = _Steps(steps)
    assert Parts(checkpoints=checkpoints).loop.run()
    assert steps == [2, 6]  # 6 makes up for 4 too; the one at the end is the run's


class _Steps(list[Position]):
    """Remembers the step of each position: the loop moves the position itself."""

    def __init__(self, steps: list[int]) -> None:
        super().__init__()
        self.steps = steps

    def append(self, position: Position) -> None:
        self.steps.append(position.step)


def test_a_progress_that_nobody_reads_takes_no_metric_with_it():
    parts = Parts(progress=Gone())
    assert parts.loop.run()
    assert sum("train/loss" in line for line in parts.told()) == 8
    assert parts.stream.close(timeout_s=60).num_dropped == 0


@pytest.mark.parametrize("step", [0, 3, 4, 8])
def test_a_signal_ends_the_loop_at_the_next_boundary_and_skips_the_rest_of_it(step: int):
    parts: Parts

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        if parts.position.step + 1 == step:
            parts.interrupts.pending = signal.SIGTERM
        return model(data).square().mean()  # type: ignore[no-any-return] # a module's result is untyped

    parts = Parts(loss=loss)
    if step == 0:
        parts.interrupts.pending = signal.SIGTERM
    assert not parts.loop.run()
    assert (parts.position.step, parts.position.evaluations) == (step, [])
    assert [line for line in parts.told() if line.startswith(f"{step} ")] == []


def test_a_loader_that_raises_without_a_signal_is_the_runs_failure(monkeypatch: pytest.MonkeyPatch):
    class Broken(Ones):
        def batch(self, index: int) -> Batch:
            raise OSError("no such shard")

    monkeypatch.setattr("runtime.training.loop._SIGNAL_EXPECTED_S", 0.01)
    with pytest.raises(OSError, match="no such shard"):
        Parts(stages=[Stage("only", Broken())]).loop.run()
