"""The flow `train`: one experiment under one slug, until it is done, whatever dies in between."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefect import flow
from prefect.client.schemas.objects import State  # noqa: TC002 - Prefect reads the annotations

from flows.experiment_trainer import CommandOf, SexpgpuTrainer, sexpgpu_command
from flows.flow_body import keep_run
from flows.parameters import TrainParameters  # noqa: TC001 - Prefect reads the annotations
from flows.standing import Recorded
from flows.trees import trees_location
from runtime.checkpoints.location import open_store

if TYPE_CHECKING:
    from flows.care import Surroundings
    from flows.standing import Standing
    from runtime.checkpoints.store import Store

__all__ = ["Experiments", "train"]


@flow(name="train", retries=0, persist_result=False)
def train(parameters: TrainParameters) -> State[Any]:
    """Train one experiment under one slug, and resume it until it is done."""
    return keep_run(parameters, Experiments())


@dataclass(frozen=True, slots=True)
class Experiments:
    """What is special about runs of experiment files; `command` makes an attempt's command line."""

    command: CommandOf = sexpgpu_command

    def standing(self, _parameters: TrainParameters, store: Store) -> Standing:
        """See `Kind.standing`."""
        return Recorded(store)

    def trainer(self, parameters: TrainParameters, surroundings: Surroundings) -> SexpgpuTrainer:
        """See `Kind.trainer`."""
        shipped = parameters.tree is not None
        trees = open_store(parameters.trees or trees_location(os.environ), os.environ) if shipped else None
        return SexpgpuTrainer(
            parameters=parameters,
            command=self.command,
            trees=trees,
            folder=surroundings.folder,
            environment=surroundings.environment,
            hidden=surroundings.hidden,
            report=surroundings.report,
            upkeep=surroundings.upkeep,
            page=surroundings.page,
        )
