"""What one training run is asked for: the parameters of the flow `train`, checked before anything starts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from runtime.cli.request import check_location, check_target
from runtime.errors import Rejected, Unavailable
from runtime.events.limits import check_slug

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "MAX_NOTICE_S",
    "TREES",
    "TrainParameters",
    "check_fields",
    "check_notice",
    "check_place",
    "check_tree",
    "check_whole",
    "experiment_path",
    "file_name",
    "from_json",
    "set_fields",
]

MAX_NOTICE_S = 25.0
"""Prefect kills a cancelled run's process group 30 seconds after its SIGTERM."""

MAX_WHOLE = 2**53 - 1
"""Every reader of JSON has these. Past 64 bits Prefect's server fails, and is asked again for minutes."""

MAX_FILE_NAME_BYTES = 200
"""File systems take 255, some endings included."""

TREES = ".trees"
"""Where shipped directories lie, beside the runs' locations: no run's name becomes this."""

DIGEST = re.compile(r"[0-9a-f]{64}")

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainParameters:
    """One experiment under one slug, and how stubbornly it is tried.

    `experiment` is an experiment file or a dotted module: in a shipped directory the file's path inside it,
    else its absolute path, the same on every worker. `tree` is the digest of the directory, unset where
    nothing was shipped, and `trees` the location where it lies; unset: `<SLUGLINE_LOCATION>/.trees` of the
    worker.
    `slug` unset: the deployment's name and the run's scheduled time. `steps`, `eval_every`, `variant`,
    `device`, `folder` unset: what the file or `sexpgpu run` choose. `precision` is the file's knob of that
    name. `gpus` unset: one where the host has any, none with `device="cpu"`. `location` unset:
    `<SLUGLINE_LOCATION>/<slug>`. `targets` come on top of the run's own file and `SLUGLINE_TARGETS`.
    `work_dir` unset: `SLUGLINE_WORK_DIR`, else `~/.local/state/slugline`.

    `interruptions` is how many kills in a row without a newer checkpoint are resumed at once; `failures`
    how many of the run's own errors are tried again; `no_progress` how many resumes in a row may bring
    nothing (unset: as many as the larger of the two). `notice_s` is the time between SIGTERM and SIGKILL.

    Raises:
        Rejected: a value that no run can have.
    """

    experiment: str
    tree: str | None = None
    trees: str | None = None
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
    no_progress: int | None = None
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
        return set_fields(self)


def from_json(values: Mapping[str, Any]) -> TrainParameters:
    """Return the parameters that Prefect keeps.

    Raises:
        Rejected: an unknown or missing field, or a bad value.
    """
    check_fields(TrainParameters, values, flow="train")
    if "experiment" not in values:
        raise Rejected("experiment is missing: name an experiment file or a module.")
    return TrainParameters(**values)


def set_fields(parameters: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a flow's parameters that are not as they are when unset, as JSON has them."""
    found = {}
    for item in fields(parameters):
        value = getattr(parameters, item.name)
        unset = item.default if item.default_factory is MISSING else item.default_factory()
        if value != unset:
            found[item.name] = _plain(value)
    return found


def check_fields(kind: type[DataclassInstance], values: Mapping[str, Any], *, flow: str) -> None:
    """Refuse what is no field of a flow's parameters.

    Raises:
        Rejected: naming it, and those that there are.
    """
    known = {item.name for item in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise Rejected(
            f"unknown parameter {unknown[0]!r}: {flow} takes {', '.join(sorted(known))}. Correct its name."
        )


def file_name(slug: str) -> str:
    """Return `slug` as one name of at most 200 bytes in a path or an S3 prefix; different ones differ."""
    name = quote(slug, safe="-_.+=@ ")
    if len(name) > MAX_FILE_NAME_BYTES:  # one letter of another script is up to nine here
        name = f"{name[: MAX_FILE_NAME_BYTES - 33]}-{blake2b(name.encode(), digest_size=16).hexdigest()}"
    return name.replace(".", "%2E") if name.strip(".") == "" or name == TREES else name


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


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _check_text(parameters: TrainParameters) -> None:
    experiment = parameters.experiment
    if not experiment:
        raise Rejected(f"experiment must name a file or a module, got {experiment!r}.")
    if parameters.tree is not None:
        _check_shipped(experiment, parameters.tree)
    elif experiment.endswith(".py") and not Path(experiment).is_absolute():
        raise Rejected(
            f"experiment must be an absolute path, got {experiment!r}: workers have other working folders."
        )
    check_place(parameters.slug, parameters.location)
    check_place(None, parameters.trees)
    for target in parameters.targets:
        check_target(target, source="targets")
    if parameters.device not in (None, "cpu", "cuda"):
        raise Rejected(f"device must be cpu or cuda, got {parameters.device!r}.")
    for name, value in parameters.knobs.items():
        _check_knob(name, value)


def _check_shipped(experiment: str, tree: str) -> None:
    check_tree(tree)
    path = PurePosixPath(experiment)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".py":
        raise Rejected(
            f"experiment must be the path of a Python file inside the shipped directory, got {experiment!r}."
        )


def _check_knob(name: str, value: Scalar) -> None:
    if not name.isidentifier():
        raise Rejected(f"a knob's name must be a Python name, got {name!r}.")
    if not isinstance(value, str | int | float | bool | None):
        raise Rejected(f"knob {name} must be text, a number, true, false or null, got {json.dumps(value)}.")


def check_place(slug: str | None, location: str | None) -> None:
    """Check a run's slug and location, where they are set.

    Raises:
        Rejected: one that no run can have.
    """
    if slug is not None:
        try:
            check_slug(slug)
        except ValueError as error:
            raise Rejected(f"slug: {error}.") from error
    if location is None:
        return
    if not location.startswith("s3://") and not Path(location).is_absolute():
        raise Rejected(f"location must be s3://bucket/prefix or an absolute path, got {location!r}.")
    check_location(location, source="location")


def check_tree(tree: str) -> None:
    """Check the digest of a shipped directory.

    Raises:
        Rejected: it is none.
    """
    if not DIGEST.fullmatch(tree):
        raise Rejected(f"tree must be a directory's digest, 64 hex digits, got {tree!r}.")


def check_whole(name: str, value: object, *, least: int) -> None:
    """Check a count; None is unset.

    Raises:
        Rejected: it is no whole number, too small, or larger than `MAX_WHOLE`.
    """
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise Rejected(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if value > MAX_WHOLE:
        raise Rejected(f"{name} must be a whole number of at most {MAX_WHOLE:,}, got {value:,}.")


def check_notice(notice_s: float) -> None:
    """Check the time between SIGTERM and SIGKILL.

    Raises:
        Rejected: it is longer than Prefect waits, or none.
    """
    if not (math.isfinite(notice_s) and 0 < notice_s <= MAX_NOTICE_S):
        raise Rejected(
            f"notice_s must be above 0 and at most {MAX_NOTICE_S:g}, got {notice_s!r}: "
            "Prefect kills what is left after 30 seconds."
        )


def _check_numbers(parameters: TrainParameters) -> None:
    lowest = {"steps": 1, "eval_every": 1, "gpus": 0, "interruptions": 0, "failures": 0, "no_progress": 1}
    for name, least in lowest.items():
        check_whole(name, getattr(parameters, name), least=least)
    check_notice(parameters.notice_s)
    if parameters.device == "cpu" and parameters.gpus:
        raise Rejected(f"gpus must be 0 with device cpu, got {parameters.gpus}.")
