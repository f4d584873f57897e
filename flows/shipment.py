"""Shipping an experiment file: its directory, tried where nothing else is, and stored for every worker."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.check import check_shipped
from flows.parameters import TREES
from flows.shipping import copy_tree, ship
from flows.trees import trees_location
from flows.unpacking import unpacked
from runtime.checkpoints.location import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flows.parameters import TrainParameters
    from flows.shipping import Tree

__all__ = ["Shipment", "ship_experiment", "trees_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """An experiment file's directory in a store. `parameters` name it; `uploaded`: it was not there yet."""

    parameters: TrainParameters
    tree: Tree
    uploaded: bool

    def __str__(self) -> str:
        files = sum(entry.kind in ("file", "executable") for entry in self.tree.entries)
        how = "shipped" if self.uploaded else "shipped before"
        return f"{how}: {files} files, {self.tree.size_bytes:,} bytes, {self.tree.digest[:12]}"


def trees_of(parameters: TrainParameters, environment: Mapping[str, str]) -> str | None:
    """Return where the directory of a run's file is to lie; None: nothing says of a place that workers reach.

    That is beside the runs below `SLUGLINE_LOCATION`, else inside the location that the run is given.
    """
    if environment.get("SLUGLINE_LOCATION"):
        return trees_location(environment)
    return None if parameters.location is None else f"{parameters.location.rstrip('/')}/{TREES}"


def ship_experiment(parameters: TrainParameters, trees: str, environment: Mapping[str, str]) -> Shipment:
    """Store the directory of the file that `parameters` name, once it is checked that the file needs no more.

    What is checked is what is stored, whatever is written in the directory meanwhile.

    Raises:
        Rejected: a mistake in the file, it needs what is not shipped, or its directory cannot be.
        Unavailable: the store cannot be reached.
    """
    file = Path(parameters.experiment)
    with tempfile.TemporaryDirectory(prefix="slugline-") as name:
        folder = Path(name).resolve()
        here = open_store(str(folder / TREES), environment)
        tree, _ = ship(file.parent, here)
        check_shipped(parameters, environment, directory=unpacked(here, tree.digest, folder))
        uploaded = copy_tree(tree.digest, here, open_store(trees, environment))
    shipped = replace(parameters, experiment=file.name, tree=tree.digest, trees=trees)
    return Shipment(parameters=shipped, tree=tree, uploaded=uploaded)
