"""Schedules: something run again and again by a cron expression, each time under a slug of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound

from flows.flow_runs import FLOW
from flows.prefect_client import page_base, prefect_client
from runtime.errors import Rejected

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from flows.assignment import RunParameters

__all__ = ["check_cron", "schedule_cron"]

NUM_FIELDS = 5
"""Prefect takes a sixth for seconds: `* * * * * *` is a run every second."""


def check_cron(cron: str) -> None:
    """Check a cron expression.

    Raises:
        Rejected: it is none.
    """
    problem: ValueError | None = None
    try:
        CronSchedule(cron=cron, timezone="UTC")
    except ValueError as error:
        problem = error
    if problem or len(cron.split()) > NUM_FIELDS:
        raise Rejected(
            f'cron must be five fields (minute hour day month weekday), got {cron!r}: try "0 3 * * *"'
        ) from problem


def schedule_cron(
    parameters: RunParameters, *, title: str, cron: str, template: str = f"{FLOW}/train"
) -> str:
    """Run what `parameters` say whenever `cron` (UTC) says so, and return the page of the schedule.

    The schedule is a deployment that is named by `parameters.slug`, a copy of `template`; its runs are called
    `<slug>-<scheduled time>`. Scheduling the same name again replaces it. `title` is what Prefect shows of
    it.

    Raises:
        Rejected: the expression is none, the slug is missing or cannot name a deployment.
        Unavailable: the Prefect server cannot be reached.
    """
    check_cron(cron)
    name = parameters.slug
    if not name or any(mark in name for mark in "/%&><"):
        raise Rejected(f"a schedule's slug must be set and hold none of / % & > <, got {name!r}")
    with prefect_client() as client:
        # Its runs make their own slugs, of this deployment's name and the scheduled time.
        values = {name: value for name, value in parameters.to_json().items() if name != "slug"}
        deployment_id = _create(client, template, name=name, cron=cron, title=title, values=values)
    return f"{page_base()}/deployments/deployment/{deployment_id}"


def _create(
    client: SyncPrefectClient, template: str, *, name: str, cron: str, title: str, values: dict[str, Any]
) -> Any:
    try:
        like = client.read_deployment_by_name(template)
    except ObjectNotFound as error:
        raise Rejected(f"there is no deployment {template}: make it with `python -m flows.deploy`") from error
    when = DeploymentScheduleCreate(schedule=CronSchedule(cron=cron, timezone="UTC"))
    return client.create_deployment(
        flow_id=like.flow_id,
        name=name,
        schedules=[when],
        parameters={"parameters": values},
        description=f"{title}, at {cron} (UTC)",
        entrypoint=like.entrypoint,
        path=like.path,
        pull_steps=like.pull_steps,
        work_pool_name=like.work_pool_name,
        work_queue_name=like.work_queue_name,
        job_variables=like.job_variables,
        parameter_openapi_schema=like.parameter_openapi_schema,
        enforce_parameter_schema=like.enforce_parameter_schema,
        tags=like.tags,
    )
