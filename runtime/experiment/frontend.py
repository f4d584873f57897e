"""Loading an experiment file: from a path and flags to an `Experiment` and the identity of its run."""

from __future__ import annotations

import ast
import random
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime import __version__
from runtime.errors import Rejected, RunError, Unavailable, said_by
from runtime.events.identity import Identity
from runtime.events.kinds import Json, plain
from runtime.experiment._checks import MAX_INT, is_finite, shown
from runtime.experiment.imports import LocalModules
from runtime.experiment.knobs import bind, read_knobs, read_variants
from runtime.experiment.manifest import core_source, describe_run, standard_sources
from runtime.experiment.model import Experiment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

__all__ = ["Loaded", "load_experiment", "mistake"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """An experiment, its model on the CPU and not yet trained, and the identity of its run."""

    experiment: Experiment
    identity: Identity


def load_experiment(
    path: Path | str,
    *,
    variant: str | None = None,
    knobs: Mapping[str, str] | None = None,
    steps: int | None = None,
    eval_every: int | None = None,
    device: str | None = None,
    devices: Sequence[int] = (),
) -> Loaded:
    """Load the experiment file at `path` with its knobs bound, and make its experiment.

    `knobs` maps names to texts, as flags give them. An unset `variant` means the defaults of the file's
    `Knobs`, an unset `steps` or `eval_every` the knob's own value. An unset `device` is `cuda` where there
    is one, else `cpu`; on `cuda`, no `devices` means the first. Global random generators are seeded from
    the knob `seed` (0 where there is none), so that loading twice gives equal models.

    Raises:
        Rejected: a mistake in the file or in a flag: one line, with the file's line where there is one.
        Unavailable: a file that the experiment reads is missing on this host.
    """
    entry = _find(path)
    device, devices = _choose_device(device, devices)
    values: dict[str, str | float] = dict(knobs or {})
    for name, value in (("steps", steps), ("eval_every", eval_every)):
        if value is not None and name in values:
            raise Rejected(f"the knob {name} is given twice: by --{name.replace('_', '-')} and by --knob")
        if value is not None:
            values[name] = value
    modules = LocalModules(entry.parent)
    try:
        experiment, bound = _make(modules, entry, variant=variant, values=values)
        modules.close()
        identity = Identity(
            sexpgpu=__version__,
            entry=entry.name,
            variant=variant,
            knobs=bound,
            run=describe_run(experiment),
            sources=[*modules.manifest(), core_source(), *standard_sources(modules.standard)],
            device=device,
            devices=devices,
        )
        identity.metadata()  # what cannot be recorded is refused here, before anything is touched
    except RunError:
        modules.forget()
        raise
    return Loaded(experiment, identity)


def _make(
    modules: LocalModules, entry: Path, *, variant: str | None, values: Mapping[str, str | float]
) -> tuple[Experiment, dict[str, Json]]:
    """Run the file; return its experiment and the bound knobs as JSON."""
    _seed(0)
    with _Blame(modules, entry):
        module = modules.run_entry(entry)
        function = _function(module)
        knobs_class = _knobs_class(module)
    with _Blame(modules, entry, around="Knobs"):
        names = list(read_knobs(knobs_class))
        variants = read_variants(vars(module), knobs_class)
        knobs = bind(knobs_class, variants, variant=variant, values=values)
        seed = _check_reserved(knobs)
    _seed(seed)
    with _Blame(modules, entry):
        experiment = function(knobs)
    with _Blame(modules, entry, around="experiment"):
        _check_experiment(experiment, knobs)
        if "steps" not in values:
            _check_stages(experiment)
    return experiment, {name: plain(getattr(knobs, name)) for name in names}


def _find(path: Path | str) -> Path:
    given = Path(path)
    try:
        exists, is_file = given.exists(), given.is_file()
    except OSError as error:  # too long, or not ours to look at
        raise Rejected(f"the experiment file cannot be reached: {error}") from error
    if not exists:
        raise Rejected(f"no experiment file at {given}: the path is relative to {Path.cwd()}")
    if given.suffix != ".py" or not is_file:
        raise Rejected(f"an experiment file is a Python file whose name ends in .py, got {given}")
    try:
        given.name.encode()
    except UnicodeEncodeError:
        raise Rejected(f"the name of an experiment file must be valid Unicode, got {given.name!a}") from None
    return given.resolve()


def _choose_device(device: str | None, devices: Sequence[int]) -> tuple[str, list[int]]:
    import torch

    if device == "cpu" or (device is None and not devices and not torch.cuda.is_available()):
        if devices:
            raise Rejected(f"--devices names CUDA devices, got {shown(list(devices))} with --device cpu")
        return "cpu", []
    if device not in {None, "cuda"}:
        raise Rejected(f"--device must be cpu or cuda, got {shown(device)}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise Rejected("--device cuda needs a CUDA device, and torch finds none here; accepted: cpu")
    chosen = list(devices) or [0]
    if len(chosen) > 1:
        raise Rejected(f"--devices takes one device, got {len(chosen)}: runs of several are not taken yet")
    if not 0 <= chosen[0] < count:
        raise Rejected(f"--devices must be from 0 to {count - 1}, got {chosen[0]}")
    return "cuda", chosen


def _function(module: ModuleType) -> Any:
    function = getattr(module, "experiment", None)
    if not callable(function):
        raise Rejected(
            "the file has no function experiment: write `def experiment(knobs: Knobs) -> Experiment`"
        )
    return function


def _knobs_class(module: ModuleType) -> type:
    knobs = getattr(module, "Knobs", None)
    if not isinstance(knobs, type):
        raise Rejected("the file has no class Knobs: write a frozen dataclass with `steps: int = 1000` in it")
    return knobs


def _check_reserved(knobs: Any) -> int:
    """Refuse reserved knobs that no run takes; return the seed."""
    diagnostics = getattr(knobs, "diagnostics", "off")
    if diagnostics != "off":
        raise Rejected(
            f"the knob diagnostics must be off, got {shown(diagnostics)}: others are not taken yet"
        )
    for name in ("steps", "eval_every"):
        if getattr(knobs, name, 1) < 1:
            raise Rejected(f"the knob {name} must be at least 1, got {getattr(knobs, name)}")
    seed = getattr(knobs, "seed", 0)
    if type(seed) is not int or not 0 <= seed <= MAX_INT:
        raise Rejected(f"the knob seed must be an integer from 0 to 2^63-1, got {shown(seed)}")
    return seed


def _check_experiment(experiment: Any, knobs: Any) -> None:
    if not isinstance(experiment, Experiment):
        raise Rejected(f"experiment() must return an Experiment, got {shown(experiment)}")
    for name in ("steps", "seed"):
        wanted = getattr(knobs, name, None)
        if wanted is not None and getattr(experiment, name) != wanted:
            raise Rejected(
                f"experiment() must follow the knob {name}, which is {wanted}, got "
                f"{getattr(experiment, name)}: pass {name}=knobs.{name} to Experiment"
            )
    if experiment.learning_rate is not None:
        for step in (0, experiment.steps - 1):
            rate = experiment.learning_rate(step)
            if not is_finite(rate) or rate < 0:
                raise Rejected(
                    f"learning_rate must return a finite number, at least 0, got {shown(rate)} at {step}"
                )


def _check_stages(experiment: Experiment) -> None:
    """Refuse stages that the file's own steps never reach; who asks for fewer wants a short run."""
    for stage in experiment.stages:
        if isinstance(stage.until, int) and stage.until >= experiment.steps:
            raise Rejected(
                f"stage {stage.name!r} must end before the last step {experiment.steps}, got "
                f"until={stage.until}: the stage after it would never train; derive it from the knob steps"
            )


def _seed(seed: int) -> None:
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that experiment files share
    torch.manual_seed(seed)


@dataclass(frozen=True, slots=True)
class _Blame:
    """Turns whatever the file raises into one line that says where.

    The line is that of the innermost frame in one of the project's files; for what is wrong with a class or
    function as a whole, that of `around`.
    """

    modules: LocalModules
    entry: Path
    around: str | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, KeyboardInterrupt):
            return
        if isinstance(error, SyntaxError):
            raise Rejected(f"{self._place(error)}: {type(error).__name__}: {_one_line(error.msg)}") from error
        made = mistake(self._place(error), error)
        if isinstance(made, Unavailable):  # it names a file, and nothing in it is ours
            raise made from error
        raise type(made)(str(made).replace(f"{self.modules.namespace}.", "")) from error

    def _place(self, error: BaseException) -> str:
        root = self.modules.root
        if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(root):
            return f"{Path(error.filename).relative_to(root).as_posix()}:{error.lineno}"
        files = {str(root / path): path for path in self.modules.sources}
        frames = traceback.extract_tb(error.__traceback__)
        for frame in reversed(frames):
            if frame.filename in files:
                return f"{files[frame.filename]}:{frame.lineno}"
        line = self._line_of(self.around) if self.around else None
        return self.entry.name if line is None else f"{self.entry.name}:{line}"

    def _line_of(self, name: str) -> int | None:
        tree = ast.parse(self.modules.sources[self.entry.name])
        lines = [node.lineno for node in tree.body if getattr(node, "name", None) == name]
        return lines[-1] if lines else None


def mistake(place: str, error: BaseException) -> RunError:
    """Return what an error of the file's code comes to: `place`, and in one line what it says.

    A file that is missing on this host may be there on another one. All else is the file's mistake, an error
    that no `except Exception` catches too: a file that exits by itself is none that passed.
    """
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return Unavailable(f"{place}: {shown(error.filename)} is missing on this host")
    if isinstance(error, RunError):
        return type(error)(f"{place}: {_one_line(str(error))}")
    return Rejected(f"{place}: {_one_line(said_by(error))}".removesuffix(":"))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 500 else line[:497] + "..."
