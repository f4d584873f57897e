"""What one training run is asked for: the parameters of the flow `train`, checked before anything starts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping  # noqa: TC003 - Prefect reads the annotations
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from runtime.cli.request import check_location, check_target
from runtime.errors import Rejected, Unavailable
from runtime.events.limits import check_slug

__all__ = ["MAX_NOTICE_S", "TrainParameters", "experiment_path", "file_name", "from_json"]

MAX_NOTICE_S = 25.0
"""Prefect kills a cancelled run's process group 30 seconds after its SIGTERM."""

MAX_FILE_NAME_BYTES = 200
"""File systems take 255, some endings included."""

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainParameters:
    """One experiment under one slug, and how stubbornly it is tried.

    `experiment` is the path of an experiment file (absolute, the same on every worker) or a dotted module.
    `slug` unset: the deployment's name and the run's scheduled time. `steps`, `eval_every`, `variant`,
    `device`, `folder` unset: what the file or `sexpgpu run` choose. `precision` is the file's knob of that
    name. `gpus` unset: one where the host has any, none with `device="cpu"`. `location` unset:
    `<SLUGLINE_LOCATION>/<slug>`. `targets` come on top of the run's own file and `SLUGLINE_TARGETS`.
    `work_dir` unset: `SLUGLINE_WORK_DIR`, else `~/.local/state/slugline`.

    `interruptions` is how many kills in a row without a newer checkpoint are resumed at once; `failures`
    how many of the run's own errors are tried again; `no_progress` how many resumes in a row may bring
    nothing. `notice_s` is the time between SIGTERM and SIGKILL.

    Raises:
        Rejected: a value that no run can have.
    """

    experiment: str
    slug: str | None = None
    folder: str | None = None
    variant: str | None = None
    knobs: Mapping[str, Scalar] = field(default_factory=dict)
    precision: str | None = None
    steps: int | None = None
    eval_every: int | None = None
    device: Literal["cpu", "cuda"] | None = None
    gpus: int | None = None
    location: str | None = None
    targets: tuple[str, ...] = ()
    interruptions: int = 10
    failures: int = 2
    no_progress: int = 5
    notice_s: float = 20.0
    work_dir: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        _check_text(self)
        _check_numbers(self)

    def pinned(self, *, slug: str, location: str | None) -> TrainParameters:
        """Return the same with what a first start decides: its slug and its location."""
        return replace(self, slug=slug, location=location)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, for Prefect."""
        plain = asdict(self)
        plain["knobs"], plain["targets"] = dict(self.knobs), list(self.targets)
        return {name: value for name, value in plain.items() if value != _default(name)}


def from_json(values: Mapping[str, Any]) -> TrainParameters:
    """Return the parameters that Prefect keeps.

    Raises:
        Rejected: an unknown or missing field, or a bad value.
    """
    known = {item.name for item in fields(TrainParameters)}
    if unknown := sorted(set(values) - known):
        raise Rejected(
            f"unknown parameter {unknown[0]!r}: train takes {', '.join(sorted(known))}. Correct its name."
        )
    if "experiment" not in values:
        raise Rejected("experiment is missing: name an experiment file or a module.")
    return TrainParameters(**values)


def file_name(slug: str) -> str:
    """Return `slug` as one name of at most 200 bytes in a path or an S3 prefix; different ones differ."""
    name = quote(slug, safe="-_.+=@ ")
    if len(name) > MAX_FILE_NAME_BYTES:  # one letter of another script is up to nine here
        name = f"{name[: MAX_FILE_NAME_BYTES - 33]}-{blake2b(name.encode(), digest_size=16).hexdigest()}"
    return name.replace(".", "%2E") if name.strip(".") == "" else name


def experiment_path(experiment: str) -> Path:
    """Return the experiment file on this host.

    Raises:
        Rejected: the module does not exist.
        Unavailable: the file is not on this host (it may be on another, or not mounted yet).
    """
    if experiment.endswith(".py"):
        path = Path(experiment)
        if not path.is_file():
            raise Unavailable(f"experiment file {experiment} is not on this host: copy it here or mount it.")
        return path
    try:
        spec = find_spec(experiment)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise Rejected(
            f"no module {experiment!r} on this host: give an installed module or the path of a file."
        )
    return Path(spec.origin)


def _default(name: str) -> Any:
    item = next(item for item in fields(TrainParameters) if item.name == name)
    if item.default is not MISSING:
        return list(item.default) if isinstance(item.default, tuple) else item.default
    return {} if name == "knobs" else MISSING


def _check_text(parameters: TrainParameters) -> None:
    experiment, slug = parameters.experiment, parameters.slug
    if not experiment:
        raise Rejected(f"experiment must name a file or a module, got {experiment!r}.")
    if experiment.endswith(".py") and not Path(experiment).is_absolute():
        raise Rejected(
            f"experiment must be an absolute path, got {experiment!r}: workers have other working folders."
        )
    if slug is not None:
        try:
            check_slug(slug)
        except ValueError as error:
            raise Rejected(f"slug: {error}.") from error
    if parameters.location is not None:
        _check_location(parameters.location)
    for target in parameters.targets:
        check_target(target, source="targets")
    if parameters.device not in (None, "cpu", "cuda"):
        raise Rejected(f"device must be cpu or cuda, got {parameters.device!r}.")
    for name, value in parameters.knobs.items():
        _check_knob(name, value)


def _check_knob(name: str, value: Scalar) -> None:
    if not name.isidentifier():
        raise Rejected(f"a knob's name must be a Python name, got {name!r}.")
    if not isinstance(value, str | int | float | bool | None):
        raise Rejected(f"knob {name} must be text, a number, true, false or null, got {json.dumps(value)}.")


def _check_location(text: str) -> None:
    if not text.startswith("s3://") and not Path(text).is_absolute():
        raise Rejected(f"location must be s3://bucket/prefix or an absolute path, got {text!r}.")
    check_location(text, source="location")


def _check_numbers(parameters: TrainParameters) -> None:
    lowest = {"steps": 1, "eval_every": 1, "gpus": 0, "interruptions": 0, "failures": 0, "no_progress": 1}
    for name, least in lowest.items():
        value = getattr(parameters, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise Rejected(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if not (math.isfinite(parameters.notice_s) and 0 < parameters.notice_s <= MAX_NOTICE_S):
        raise Rejected(
            f"notice_s must be above 0 and at most {MAX_NOTICE_S:g}, got {parameters.notice_s!r}: "
            "Prefect kills what is left after 30 seconds."
        )
    if parameters.device == "cpu" and parameters.gpus:
        raise Rejected(f"gpus must be 0 with device cpu, got {parameters.gpus}.")
