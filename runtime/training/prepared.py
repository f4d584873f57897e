"""An experiment made ready to train: on its device, its settings in force, its state fit for a checkpoint."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import torch

from runtime.errors import Rejected
from runtime.experiment.frontend import mistake
from runtime.training.determinism import configure, observe, restore
from runtime.training.position import Position
from runtime.training.precision import Precision
from runtime.training.state import TrainingState

if TYPE_CHECKING:
    from runtime.checkpoints.reader import Checkpoint
    from runtime.experiment.frontend import Loaded

__all__ = ["Prepared"]

_MAX_SHAPES = 64

_log = logging.getLogger(__name__)


class Prepared:
    """What an attempt trains, before anything outside the process was touched.

    Raises:
        Rejected: the experiment keeps something that no checkpoint can hold, or trains a tensor that is
            not its model's.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.experiment = loaded.experiment
        self.identity = loaded.identity
        self.device = torch.device(loaded.identity.device, *loaded.identity.devices)
        configure(self.experiment, self.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # what a file makes on "cuda" lands on the right one
        self.experiment.model.to(self.device)
        self.precision = Precision(self.experiment.precision, self.device)
        self.position = Position()
        try:
            self.state = TrainingState(self.experiment, self.precision)
            self.state.check()
        except ValueError as error:
            raise Rejected(f"{loaded.identity.entry}: {error}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the state_dict of what the file has made
            raise mistake(f"{loaded.identity.entry}: the state cannot be captured", error) from error

    def fit(self, checkpoint: Checkpoint | None) -> None:
        """Take over the place of `checkpoint`, whose state fits; unset, the run begins at step 0.

        Raises:
            Rejected: its state does not fit this experiment.
        """
        self.position = Position()
        if checkpoint is None:
            return
        self.state.fit(checkpoint.tensors, checkpoint.data["state"], source=checkpoint.path)
        self.position = Position.from_data(checkpoint.data, self.experiment.stages, source=checkpoint.path)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Make the state that of `checkpoint`, and say in the log what of its pins could not be kept."""
        self.state.restore(checkpoint.tensors, checkpoint.data["state"])
        lines = restore(checkpoint.data["pins"], self.experiment, self.device)
        if lines:
            _log.warning("no equality with an unbroken run is claimed: %s", "; ".join(lines))

    def about(self) -> dict[str, Any]:
        """What every checkpoint of this attempt carries beside the state and the position."""
        return {"identity": self.identity.metadata(), "pins": observe(self.experiment, self.device)}

    def compiled(self) -> torch.nn.Module:
        """The model as losses get it."""
        model = self.experiment.model
        if not self.experiment.compile:
            return model
        from torch._dynamo import config

        # Kernels for each shape by itself: torch would make general ones at the second shape that it happens
        # to see, and a resume sees another one first. Past the limit it would go on uncompiled: also history.
        config.recompile_limit = _MAX_SHAPES
        config.fail_on_recompile_limit_hit = True
        return cast("torch.nn.Module", torch.compile(model, dynamic=False))
