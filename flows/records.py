"""What Metrics is told of a run by its parameters, should it have no record of it yet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from flows.command import is_sexpgpu_run
from flows.parameters import TrainParameters
from flows.run_writer import Record
from flows.ship_parameters import ShipParameters
from flows.trees import listed_files, trees_location
from flows.unpacking import read_listing
from runtime.checkpoints.location import open_store
from runtime.errors import RunError

if TYPE_CHECKING:
    from flows.assignment import RunParameters

__all__ = ["record_of"]


def record_of(parameters: RunParameters) -> Record:
    """Return the record of a run that its first start has given a slug.

    `div run` makes one before it schedules the run; one of `train`, or of a schedule, is made when it starts.
    """
    assert parameters.slug is not None
    assert isinstance(parameters, TrainParameters | ShipParameters)
    tree, trees = parameters.tree, parameters.trees
    files = None if tree is None else lambda: _files(tree, trees)
    if isinstance(parameters, TrainParameters):
        return Record(slug=parameters.slug, kind="train", folder=parameters.folder, tree=tree, files=files)
    return Record(
        slug=parameters.slug,
        kind="command",
        folder=parameters.folder,
        command=parameters.command,
        tree=tree,
        files=files,
        telemetry=parameters.telemetry,
        checks=parameters.checks,
        announced=not is_sexpgpu_run(parameters.command),
    )


def _files(tree: str, trees: str | None) -> list[dict[str, Any]] | None:
    """Return what was shipped; nothing where the store does not say: the run itself may have it already."""
    try:
        return listed_files(read_listing(open_store(trees or trees_location(os.environ), os.environ), tree))
    except RunError:
        return None
