"""The one place that experiment files import from: `from sexpgpu import Experiment, Stage, metric, text`.

The name is the command's, and no project's own: your `flows/` or `runtime/` folder and ours never meet. That
is why the commands begin here, too: before anything else they import our packages from beside this file,
whatever `PYTHONPATH` holds under the same names. `python -m sexpgpu MODULE ...` does so for a module of ours.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.experiment.model import Batch, Evaluation, Experiment, Loader, Reached, Stage
    from runtime.std import data, digits, models, optim, text
    from runtime.training.metrics import metric


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


def main() -> int:
    """Run the command `sexpgpu` and return its exit code."""
    _begin()
    from runtime.cli.main import main as command

    return command()


def slugline() -> None:
    """Run the command `slugline` and exit."""
    _begin()
    from flows.cli import main as command

    command()


def syvain_metrics() -> None:
    """Run the command `syvain-metrics` and exit."""
    _begin()
    from infra.metrics.main import main as command

    command()


def div() -> None:
    """Run the command `div` and exit."""
    _begin()
    from flows.div.main import main as command

    command()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sexpgpu' has no attribute {name!r}")
    _import_ours()
    if name in {"data", "digits", "models", "optim", "text"}:
        return import_module(f"runtime.std.{name}")
    home = "runtime.training.metrics" if name == "metric" else "runtime.experiment.model"
    return getattr(import_module(home), name)


def _begin() -> None:
    """Make the process one that a command can run in: with our packages, and streams that take any text.

    A standard stream that is closed becomes /dev/null: the next file would else be opened in its place, and
    get what is printed. What is printed is UTF-8 in every locale, as events are; a lone surrogate, which the
    name of a file may hold, becomes its escape, which JSON reads too.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - as long as the process
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr] # a process's own
    _import_ours()


def _import_ours() -> None:
    """Import our packages from the folder of this file; their modules are then found through them."""
    here = str(Path(__file__).resolve().parent)
    sys.path.insert(0, here)
    try:
        for package in ("flows", "infra", "runtime"):
            import_module(package)
    finally:
        sys.path.remove(here)


def _run_module() -> None:
    if len(sys.argv) < 2 or "." not in sys.argv[1]:
        sys.exit("python -m sexpgpu takes a module, such as flows.rescue; the command is `sexpgpu`")
    _import_ours()
    import runpy

    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run_module()
