"""The loop: what happens at each boundary, in the one order that all of Slugline relies on."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from runtime.experiment.model import Reached
from runtime.training.position import Position, remaining

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runtime.events.kinds import Point
    from runtime.events.stream import EventStream
    from runtime.experiment.model import Evaluation, Experiment
    from runtime.training.evaluation import Evaluator
    from runtime.training.interrupts import Interrupts
    from runtime.training.metrics import Pending
    from runtime.training.progress import Progress
    from runtime.training.update import Updater

__all__ = ["Checkpoints", "Loop"]

_SIGNAL_EXPECTED_S = 0.5

_log = logging.getLogger(__name__)


class Checkpoints(Protocol):
    """Where the loop leaves what it has; it knows nothing of stores."""

    def offer(self, position: Position) -> bool:
        """Take the state of this boundary, unless an earlier save is still in flight.

        Raises:
            Superseded: a newer attempt owns the run.
        """
        ...

    def moved_on(self, step: int) -> None:
        """Note that `step` updates are done. Raises `Superseded` like `offer`."""
        ...


class Loop:
    """Trains one attempt from `position` on, which it moves."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        position: Position,
        update: Updater,
        evaluate: Evaluator,
        stream: EventStream,
        interrupts: Interrupts,
        progress: Progress,
        checkpoints: Checkpoints | None = None,
        held_step: int | None = None,
    ) -> None:
        """`held_step` is the step of the checkpoint that the attempt started from; unset, it has none."""
        self.position = position
        self._experiment = experiment
        self._update = update
        self._evaluate = evaluate
        self._stream = stream
        self._interrupts = interrupts
        self._progress = progress
        self._checkpoints = checkpoints
        self._held_step = held_step
        self._is_due = False
        self._loss_is_finite = True

    def run(self) -> bool:
        """Go on until the last boundary is done (True), or a signal interrupts at one (False).

        Raises:
            Superseded: a newer attempt owns the run.
            Exception: whatever the experiment file raises.
        """
        while True:
            if self._interrupts.asked():
                return False
            if not self._evaluations():
                continue
            self._change_stage()
            if self.position.step >= self._experiment.steps:
                return True
            if self._interrupts.asked():
                continue
            self._checkpoint()
            if not self._make_update():
                return False

    def _evaluations(self) -> bool:
        """Make what is due and not yet done; False when a signal came first."""
        for evaluation in remaining(self.position, self._experiment):
            if self._interrupts.asked() or not self._evaluation(evaluation):
                return False
        return True

    def _evaluation(self, evaluation: Evaluation) -> bool:
        position = self.position
        stage = self._experiment.stages[position.stage]
        self._progress.evaluating(evaluation.name)
        pending = self._evaluate(evaluation, step=position.step, stage=stage.name)
        if pending is None:
            return False
        if isinstance(stage.until, Reached) and stage.until.evaluation == evaluation.name:
            # Only a stage that waits for the value makes training wait for the device.
            points = pending.points()
            position.values[evaluation.name] = _first_values(points)
            self._stream.metrics(position.step, lambda: points)
        else:
            self._stream.metrics(position.step, pending.points)
        position.evaluations.append(evaluation.name)
        return True

    def _change_stage(self) -> None:
        position, stages = self.position, self._experiment.stages
        if position.stage_change or not position.stage_ends(stages):
            return
        old, new = stages[position.stage].name, stages[position.stage + 1].name
        position.stage += 1
        position.stage_start = position.step
        position.stage_change = True
        self._stream.annotate(position.step, f"stage {old} -> {new}", {"from": old, "to": new})

    def _checkpoint(self) -> None:
        """Hand over a checkpoint that is due; while one is in flight it stays due."""
        every, step = self._experiment.checkpoint_every, self.position.step
        if self._checkpoints is None or every is None:
            return
        if step > 0 and step % every == 0 and step != self._held_step:
            self._is_due = True
        if self._is_due and self._checkpoints.offer(self.position):
            self._is_due = False

    def _make_update(self) -> bool:
        try:
            pending = self._update(self.position)
        except Exception:
            # The signal may have reached the loader's workers first: nothing of this step has happened.
            if self._update.untouched and self._interrupts.expected_within(_SIGNAL_EXPECTED_S):
                return False
            raise
        step = self.position.step
        self._stream.metrics(step, self._reported(step, pending))
        self.position.advance()
        if self._checkpoints is not None:
            self._checkpoints.moved_on(self.position.step)
        return True

    def _reported(
        self, step: int, pending: Pending
    ) -> Callable[[], list[tuple[str, float, Mapping[str, str]]]]:
        def points() -> list[tuple[str, float, Mapping[str, str]]]:
            resolved = pending.points()
            self._look_at_loss(step, resolved)
            with suppress(OSError):  # nobody reads standard error any more; the points must not go with it
                self._progress.updated(step + 1, resolved)
            return resolved

        return points

    def _look_at_loss(self, step: int, points: Sequence[Point]) -> None:
        """Say once that the run is probably lost; on the stream's thread, where no device is waited for."""
        loss = next((value for name, value, _ in points if name == "train/loss"), 0.0)
        if self._loss_is_finite and not math.isfinite(loss):
            self._loss_is_finite = False
            _log.warning(
                "train/loss is %s at step %d, and this is said once: training goes on, but a model seldom "
                "recovers; lower the learning rate, set clip_norm, or look at the data of that step",
                loss,
                step,
            )


def _first_values(points: list[tuple[str, float, Mapping[str, str]]]) -> dict[str, float]:
    """A metric's value for a stage's condition: under several metadata, the one that came first."""
    values: dict[str, float] = {}
    for name, value, _ in points:
        values.setdefault(name, value)
    return values
