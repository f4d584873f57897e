"""What Metrics is told of a run by its parameters, should it have no record of it yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flows.command import is_sexpgpu_run
from flows.runs_api import Record
from flows.ship_parameters import ShipParameters

if TYPE_CHECKING:
    from flows.assignment import RunParameters

__all__ = ["record_of"]


def record_of(parameters: RunParameters) -> Record:
    """Return the record of a run that its first start has given a slug.

    `div run` makes one before it schedules the run; one of `train`, or of a schedule, is made when it starts.
    """
    assert parameters.slug is not None
    if not isinstance(parameters, ShipParameters):
        return Record(slug=parameters.slug, kind="train", folder=parameters.folder)
    return Record(
        slug=parameters.slug,
        kind="command",
        folder=parameters.folder,
        command=parameters.command,
        tree=parameters.tree,
        telemetry=parameters.telemetry,
        checks=parameters.checks,
        announced=not is_sexpgpu_run(parameters.command),
    )
