"""The flow `ship`: a command in a shipped directory, under one slug, until it is done, whatever dies."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefect import flow
from prefect.client.schemas.objects import State  # noqa: TC002 - Prefect reads the annotations

from flows.command import CHECKPOINTS, CommandTrainer, checkpoints_of, is_sexpgpu_run
from flows.flow_body import keep_run
from flows.ship_parameters import ShipParameters  # noqa: TC001 - Prefect reads the annotations
from flows.standing import Files, Inside
from flows.trees import trees_location
from runtime.checkpoints.location import open_store

if TYPE_CHECKING:
    from flows.care import Surroundings
    from flows.standing import Standing
    from runtime.checkpoints.store import Store

__all__ = ["Commands", "ship"]


@flow(name="ship", retries=0, persist_result=False)
def ship(parameters: ShipParameters) -> State[Any]:
    """Run a command in a shipped directory under one slug, and start it again until it is done."""
    return keep_run(parameters, Commands())


@dataclass(frozen=True, slots=True)
class Commands:
    """What is special about runs of shipped commands."""

    def standing(self, parameters: ShipParameters, store: Store) -> Standing:
        """See `Kind.standing`."""
        if not is_sexpgpu_run(parameters.command):
            return Files(store, f"{CHECKPOINTS}/")
        assert parameters.location is not None
        return Inside(open_store(checkpoints_of(parameters.location), os.environ))

    def trainer(self, parameters: ShipParameters, surroundings: Surroundings) -> CommandTrainer:
        """See `Kind.trainer`."""
        return CommandTrainer(
            parameters=parameters,
            store=surroundings.store,
            trees=open_store(parameters.trees or trees_location(os.environ), os.environ),
            folder=surroundings.folder,
            environment=surroundings.environment,
            hidden=surroundings.hidden,
            report=surroundings.report,
            upkeep=surroundings.upkeep,
            page=surroundings.page,
            is_replaced=surroundings.is_replaced,
        )
