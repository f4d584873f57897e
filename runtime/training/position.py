"""Where a run stands: the boundary, the stage, and what of this boundary has been done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runtime.errors import Rejected, RunError
from runtime.experiment.model import Reached
from runtime.training.packing import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runtime.experiment.model import Evaluation, Experiment, Stage

__all__ = ["Position", "is_finished", "remaining"]


@dataclass(slots=True, kw_only=True)
class Position:
    """Boundary `step` of a run: that many updates are done.

    `values` holds what the evaluations of this boundary measured, by evaluation and metric, for a stage
    that ends on one of them.
    """

    step: int = 0
    stage: int = 0
    stage_start: int = 0
    evaluations: list[str] = field(default_factory=list)
    stage_change: bool = False
    values: dict[str, dict[str, float]] = field(default_factory=dict)

    def advance(self) -> None:
        """Go to the next boundary, of which nothing is done yet."""
        self.step += 1
        self.evaluations, self.stage_change, self.values = [], False, {}

    def batch_index(self, microbatches: int, microbatch: int) -> int:
        """Which batch of the stage's loader a microbatch of the next update is."""
        return (self.step - self.stage_start) * microbatches + microbatch

    def as_data(self, stages: Sequence[Stage], microbatches: int) -> dict[str, Any]:
        """The position as a checkpoint keeps it; stages by name."""
        return {
            "step": self.step,
            "stage": {"name": stages[self.stage].name, "start": self.stage_start},
            "loader": {"next_batch": self.batch_index(microbatches, 0)},
            "boundary": {
                "evaluations": list(self.evaluations),
                "stage_change": self.stage_change,
                "values": pack("values", self.values)[0],
            },
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any], stages: Sequence[Stage], *, source: str) -> Position:
        """The position that `as_data` described, in an experiment that may have been edited since.

        Raises:
            Rejected: the stage that the run was in is none of `stages`.
        """
        names = [stage.name for stage in stages]
        name = data["stage"]["name"]
        if name not in names:
            raise Rejected(
                f"{source} was written in stage {name!r}, and this experiment file has only "
                f"{', '.join(names)}: give the stage its name back, or the changed file another slug"
            )
        boundary = data["boundary"]
        return cls(
            step=data["step"],
            stage=names.index(name),
            stage_start=data["stage"]["start"],
            evaluations=list(boundary["evaluations"]),
            stage_change=boundary["stage_change"],
            values=unpack(boundary["values"], {}),
        )

    def stage_ends(self, stages: Sequence[Stage]) -> bool:
        """Say whether the next stage begins at this boundary.

        Raises:
            RunError: the stage waits for a metric that its evaluation does not report.
        """
        until = stages[self.stage].until
        if until is None or self.stage + 1 == len(stages):
            return False
        if isinstance(until, Reached):
            return until.evaluation in self.values and _reached(until, self.values[until.evaluation])
        return self.step >= until


def remaining(position: Position, experiment: Experiment) -> list[Evaluation]:
    """The evaluations of this boundary that have not been done, in the experiment's order."""
    return [
        evaluation
        for evaluation in experiment.evaluations
        if evaluation.name not in position.evaluations and _due(evaluation, position.step, experiment.steps)
    ]


def is_finished(position: Position, experiment: Experiment) -> bool:
    """Say whether nothing is left: no update, and nothing of the last boundary."""
    if position.step != experiment.steps:
        return position.step > experiment.steps
    stage_is_settled = position.stage_change or not position.stage_ends(experiment.stages)
    return stage_is_settled and not remaining(position, experiment)


def _due(evaluation: Evaluation, step: int, steps: int) -> bool:
    if step > steps:
        return False
    if step == 0:
        return evaluation.at_start
    return step % evaluation.every == 0 or step == steps


def _reached(until: Reached, values: Mapping[str, float]) -> bool:
    value = values.get(until.metric)
    if value is None:
        raise RunError(
            f"a stage ends by the metric {until.metric!r} of evaluation {until.evaluation!r}, which reports "
            f"only {', '.join(values)}: report it with metric() in the evaluation's loss"
        )
    if until.at_most is not None:
        return value <= until.at_most
    assert until.at_least is not None, "checked when the file was loaded"
    return value >= until.at_least
