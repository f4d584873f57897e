"""The one place that experiment files import from: `from sexpgpu import Experiment, Stage, metric, text`.

The name is the command's, and no project's own: your `flows/` or `runtime/` folder and ours never meet.
The standard modules (`data`, `digits`, `models`, `optim`, `text`) load when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runtime.experiment.model import Batch, Evaluation, Experiment, Loader, Reached, Stage
from runtime.training.metrics import metric

if TYPE_CHECKING:
    from runtime.std import data, digits, models, optim, text


__all__ = [
    "Batch",
    "Evaluation",
    "Experiment",
    "Loader",
    "Reached",
    "Stage",
    "data",
    "digits",
    "metric",
    "models",
    "optim",
    "text",
]


def __getattr__(name: str) -> Any:
    if name in {"data", "digits", "models", "optim", "text"}:
        return import_module(f"runtime.std.{name}")
    raise AttributeError(f"module 'sexpgpu' has no attribute {name!r}")
