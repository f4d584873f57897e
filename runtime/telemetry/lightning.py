"""`TelemetryLogger`: what a Lightning module logs, written to the run's telemetry.

Needs the extra `lightning`; nothing else imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from runtime.telemetry.writer import Telemetry

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["TelemetryLogger"]


class TelemetryLogger(Logger):
    """Writes every number that is logged, with its step, from the process of rank 0.

    `path` unset means the file that `div run` names. Hyperparameters are no telemetry: they are passed over.

        trainer = Trainer(logger=TelemetryLogger(), ...)
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._path = path
        self._telemetry: Telemetry | None = None

    @property
    def name(self) -> str:
        """The folder of checkpoints beside it, where the `Trainer` is given no other."""
        return "telemetry"

    @property
    def version(self) -> str:
        """None of its own: a resume finds its checkpoints where they were."""
        return ""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write what was logged."""
        if self._telemetry is None:
            self._telemetry = Telemetry(self._path)
        place = {} if step is None else {"step": step}
        self._telemetry.append({**place, **metrics})

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Pass over what is known before the run."""

    @rank_zero_only
    def finalize(self, status: str) -> None:  # noqa: ARG002 - a Logger's signature
        """Let go of the file."""
        if self._telemetry is not None:
            self._telemetry.close()
