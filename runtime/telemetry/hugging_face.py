"""`TelemetryCallback`: what a Hugging Face `Trainer` logs, written to the run's telemetry.

Needs the extra `transformers`; nothing else imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from runtime.telemetry.writer import Telemetry

if TYPE_CHECKING:
    import os

    from transformers import TrainerControl, TrainerState, TrainingArguments

__all__ = ["TelemetryCallback"]


class TelemetryCallback(TrainerCallback):
    """Writes every dict of numbers that the `Trainer` logs, with its step, from the first process of the run.

    `path` unset means the file that `div run` names.

        trainer = Trainer(model=model, args=args, callbacks=[TelemetryCallback()], ...)
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = path
        self._telemetry: Telemetry | None = None

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002 - transformers gives it by its name
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002 - the same
        logs: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ARG002 - the same
    ) -> None:
        """Write what was logged."""
        if state.is_world_process_zero and logs:
            if self._telemetry is None:
                self._telemetry = Telemetry(self._path)
            self._telemetry.append({"step": state.global_step, **logs})
