"""The one place that experiment files import from: `from sexpgpu import Experiment, Stage, metric, text`.

The name is the command's, and no project's own: your `flows/` or `runtime/` folder and ours never meet.
The standard modules (`data`, `digits`, `models`, `optim`, `text`) load when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runtime.experiment.model import Batch as Batch
from runtime.experiment.model import Evaluation as Evaluation
from runtime.experiment.model import Experiment as Experiment
from runtime.experiment.model import Loader as Loader
from runtime.experiment.model import Reached as Reached
from runtime.experiment.model import Stage as Stage
from runtime.training.metrics import metric as metric

if TYPE_CHECKING:
    from runtime.std import data as data
    from runtime.std import digits as digits
    from runtime.std import models as models
    from runtime.std import optim as optim
    from runtime.std import text as text


def __getattr__(name: str) -> Any:
    if name in {"data", "digits", "models", "optim", "text"}:
        return import_module(f"runtime.std.{name}")
    raise AttributeError(f"module 'sexpgpu' has no attribute {name!r}")
