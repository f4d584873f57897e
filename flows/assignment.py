"""What a run's first start decides for good: its slug, its location, the host of a local one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from flows.parameters import TrainParameters, file_name
from flows.server import FlowRun, Server, slug_tag
from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Assignment", "assign", "assigned_host", "is_local", "slug_of"]

HOST_TAG = "host:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The parameters with everything decided; `host` holds the location (unset: every host reaches it)."""

    parameters: TrainParameters
    host: str | None


def slug_of(run: FlowRun, parameters: TrainParameters, *, deployment: str) -> str:
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
    server: Server, run: FlowRun, parameters: TrainParameters, *, environment: Mapping[str, str], host: str
) -> Assignment:
    """Decide what is open, and keep it with the flow run, so that every later start finds the same.

    Raises:
        Rejected: there is no slug, or no location.
        Unavailable: the Prefect server cannot be reached.
    """
    deployment = server.deployment_name(run.deployment_id) if run.deployment_id is not None else "train"
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


def is_local(parameters: TrainParameters) -> bool:
    """Say whether only one host reaches the location."""
    return parameters.location is not None and not parameters.location.startswith("s3://")


def _default(slug: str, environment: Mapping[str, str]) -> str:
    prefix = environment.get("SLUGLINE_LOCATION")
    if not prefix:
        raise Rejected(
            f"{slug} has no location: give one, or set SLUGLINE_LOCATION to a prefix where the worker runs."
        )
    return f"{prefix.rstrip('/')}/{file_name(slug)}"
