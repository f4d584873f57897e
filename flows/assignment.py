"""What a run's first start decides for good: its slug, its location, the host of a local one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Protocol, Self

from flows.flow_runs import FlowRun, slug_tag
from flows.parameters import file_name, from_json
from flows.ship_parameters import ship_parameters
from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flows.server import Server

__all__ = [
    "Assignment",
    "RunParameters",
    "assign",
    "assigned_host",
    "is_local",
    "parameters_of",
    "slug_of",
]

HOST_TAG = "host:"


class RunParameters(Protocol):
    """What `TrainParameters` and `ShipParameters` have in common: what keeping a run alive needs to know."""

    @property
    def slug(self) -> str | None:
        """The run's name; unset: its first start decides."""
        ...

    @property
    def folder(self) -> str | None:
        """The folder of its experiment; unset: the root."""
        ...

    @property
    def location(self) -> str | None:
        """Where it keeps what must outlive its host; unset: its first start decides."""
        ...

    @property
    def work_dir(self) -> str | None:
        """The folder of a host's runs; unset: the worker's."""
        ...

    @property
    def gpus(self) -> int | None:
        """How many it needs; unset: one where the host has any."""
        ...

    @property
    def interruptions(self) -> int:
        """How many kills in a row are resumed."""
        ...

    @property
    def failures(self) -> int:
        """How many of its own errors are tried again."""
        ...

    @property
    def no_progress(self) -> int | None:
        """How many resumes in a row may bring nothing; unset: as many as the larger budget has."""
        ...

    @property
    def notice_s(self) -> float:
        """The seconds between SIGTERM and SIGKILL."""
        ...

    def pinned(self, *, slug: str, location: str | None) -> Self:
        """Return the same with what a first start decides."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, for Prefect."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The parameters with everything decided; `host` holds the location (unset: every host reaches it)."""

    parameters: RunParameters
    host: str | None


def parameters_of(run: FlowRun) -> RunParameters:
    """Return what a flow run was asked for, whichever of our flows it is.

    Raises:
        Rejected: a field that this version does not know, or a bad value.
    """
    values = run.train
    return ship_parameters(values) if "command" in values else from_json(values)


def slug_of(run: FlowRun, parameters: RunParameters, *, deployment: str) -> str:
    """Return the run's slug: its own, or the deployment's name and the time for which it was scheduled.

    A later run for the same scheduled time gets the same slug, and so is a resume.

    Raises:
        Rejected: it has neither.
    """
    if parameters.slug is not None:
        return parameters.slug
    time = run.expected_start_time  # that of the first schedule: being set back does not move it
    if time is None:
        raise Rejected("slug is missing, and the run was not scheduled for a time: give a slug.")
    return f"{deployment}-{time.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def assign(
    server: Server, run: FlowRun, parameters: RunParameters, *, environment: Mapping[str, str], host: str
) -> Assignment:
    """Decide what is open, and keep it with the flow run, so that every later start finds the same.

    Raises:
        Rejected: there is no slug, or no location.
        Unavailable: the Prefect server cannot be reached.
    """
    deployment = server.deployment_name(run.deployment_id) if run.deployment_id is not None else "run"
    slug = slug_of(run, parameters, deployment=deployment)
    parameters = parameters.pinned(slug=slug, location=parameters.location or _default(slug, environment))
    # A run that was moved to a location which all reach is no longer bound to the host of its old one.
    holder = (assigned_host(run) or host) if is_local(parameters) else None
    others = (tag for tag in run.tags if not tag.startswith(HOST_TAG))
    tags = {*others, slug_tag(slug), *([HOST_TAG + holder] if holder is not None else [])}
    wanted = {"name": slug, "tags": sorted(tags), "parameters": {"parameters": parameters.to_json()}}
    if (run.name, sorted(run.tags), run.parameters) != tuple(wanted.values()):
        server.update(run.id, **wanted)
    return Assignment(parameters=parameters, host=holder)


def assigned_host(run: FlowRun) -> str | None:
    """Return the host whose disk holds the run; unset: not started yet, or at a location that all reach."""
    return next((tag.removeprefix(HOST_TAG) for tag in run.tags if tag.startswith(HOST_TAG)), None)


def is_local(parameters: RunParameters) -> bool:
    """Say whether only one host reaches the location."""
    return parameters.location is not None and not parameters.location.startswith("s3://")


def _default(slug: str, environment: Mapping[str, str]) -> str:
    prefix = environment.get("SLUGLINE_LOCATION")
    if not prefix:
        raise Rejected(
            f"{slug} has no location: give one, or set SLUGLINE_LOCATION to a prefix where the worker runs."
        )
    return f"{prefix.rstrip('/')}/{file_name(slug)}"
