"""Scheduling runs by slug: what the commands `slugline` and `div` ask of Prefect."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from flows.assignment import parameters_of
from flows.flow_runs import ASKED, AWAITING_RETRY, FLOW, slug_tag
from flows.server import connect
from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flows.assignment import RunParameters
    from flows.flow_runs import FlowRun, State
    from flows.server import Server

__all__ = [
    "DEPLOYMENTS",
    "Cancellation",
    "Live",
    "RunView",
    "cancel",
    "check_schedule",
    "find_run",
    "list_runs",
    "resume",
    "schedule",
]

DEPLOYMENTS = {"slugline train": f"{FLOW}/train", "div run": "ship/ship"}
"""By the command that schedules their runs."""

ECHO = timedelta(minutes=2)
SOON = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run as Prefect knows it. `live`: Prefect or rescue will still do something with it."""

    slug: str
    flow_run_id: str
    state: str
    message: str | None
    location: str | None
    scheduled: datetime | None
    started: datetime | None
    ended: datetime | None
    page: str
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """A run that was asked to end. `begun`: a flow process has begun, which says so on the run's page.

    `parameters` are the run's; unset: this version does not understand them.
    """

    run: RunView
    begun: bool
    parameters: RunParameters | None


class Live(Rejected):
    """The slug has a run that is not over."""


def schedule(parameters: RunParameters, *, deployment: str | None = None) -> RunView:
    """Run what `parameters` say now: a new run of their slug, or a final one set back with these parameters.

    `deployment` unset: that of the parameters' flow.

    Raises:
        Live: the slug is.
        Rejected: the slug is missing or another command's, there is no such deployment.
        Unavailable: the Prefect server cannot be reached.
    """
    if parameters.slug is None:
        raise Rejected("slug is missing: name the run.")
    values = parameters.to_json()
    with connect() as server:
        deployment_id = server.deployment_id(deployment or DEPLOYMENTS[_command(values)])
        if known := server.runs(slug=parameters.slug):
            return _set_back(server, parameters.slug, known, values)
        return _create(server, deployment_id, parameters.slug, values, key=parameters.slug)


def check_schedule(slug: str | None, *, command: str) -> None:
    """See whether `command` may schedule a run of this slug; unset: of one that no run has.

    Raises:
        Live: its run is not over.
        Rejected: it is another command's, or there is no deployment.
        Unavailable: the Prefect server cannot be reached.
    """
    with connect() as server:
        server.deployment_id(DEPLOYMENTS[command])
        if slug is not None:
            _require_final(slug, server.runs(slug=slug), command)


def resume(slug: str) -> RunView:
    """Set a final run back, with the parameters it has.

    Raises:
        Rejected: there is no such run, or it is live.
        Unavailable: the Prefect server cannot be reached.
    """
    with connect() as server:
        return _set_back(server, slug, _known(server, slug), None)


def cancel(slug: str) -> Cancellation:
    """Ask for the run's end: it saves within its notice, and is Cancelled once its processes are gone.

    Raises:
        Rejected: there is no such run, or it is final.
        Unavailable: the Prefect server cannot be reached.
    """
    with connect() as server:
        run = _known(server, slug)[0]
        assert run.state is not None
        if run.state.final and run.state.type != "CRASHED":
            raise Rejected(f"{slug} is {run.state.name} already: there is nothing to cancel.")
        # A run that waits or has crashed has no process that could notice.
        waiting = run.state.type in ("SCHEDULED", "CRASHED")
        state = {"type": "CANCELLED"} if waiting else {"type": "CANCELLING"}
        server.set_state(run.id, state, message="Cancelled by the user.")
        # Prefect ends a process that is about to start before it can say a word.
        begun = not waiting and run.state.type != "PENDING"
        try:
            parameters = parameters_of(run)
        except Rejected:
            parameters = None
        return Cancellation(run=_view(server, server.run(run.id)), begun=begun, parameters=parameters)


def list_runs(*, limit: int = 50) -> list[RunView]:
    """Return the newest runs, newest first, each slug once; not those that a schedule plans for later.

    Raises:
        Unavailable: the Prefect server cannot be reached.
    """
    due_by, count = datetime.now(UTC) + SOON, limit
    with connect() as server:
        while True:
            found = server.runs(limit=count, due_by=due_by)
            newest: dict[str, RunView] = {}
            for run in found:
                view = _view(server, run)
                newest.setdefault(view.slug, view)
            if len(newest) >= limit or len(found) < count:
                return list(newest.values())[:limit]
            count *= 2  # several flow runs were of one slug


def find_run(slug: str) -> RunView:
    """Return the newest run of a slug.

    Raises:
        Rejected: there is none.
        Unavailable: the Prefect server cannot be reached.
    """
    with connect() as server:
        return _view(server, _known(server, slug)[0])


def _known(server: Server, slug: str) -> list[FlowRun]:
    if runs := server.runs(slug=slug):
        return runs
    raise Rejected(f"no run {slug!r}: `slugline list` shows what there is.")


def _require_final(slug: str, known: Sequence[FlowRun], command: str | None) -> None:
    for run in known:
        if run.state is None or not run.state.final:
            raise _live(slug, run)
        if command is not None and _command(run.train) != command:
            raise Rejected(f"{slug} is a run of `{_command(run.train)}`: give this one another slug.")


def _set_back(server: Server, slug: str, known: list[FlowRun], wanted: Mapping[str, Any] | None) -> RunView:
    _require_final(slug, known, None if wanted is None else _command(wanted))
    run = known[0]
    values = dict(run.train if wanted is None else wanted)
    if (location := run.train.get("location")) is not None:
        values.setdefault("location", location)  # a slug keeps the location that its first start decided
    if (key := _echo(run)) is not None and run.deployment_id is not None:
        return _create(server, run.deployment_id, slug, values, key=key, tags=run.tags)
    if wanted is not None:
        server.update(run.id, parameters={"parameters": values}, tags=sorted({*run.tags, slug_tag(slug)}))
    server.set_state(run.id, AWAITING_RETRY, message=ASKED)
    return _view(server, server.run(run.id))


def _create(
    server: Server,
    deployment_id: str,
    slug: str,
    values: Mapping[str, Any],
    *,
    key: str,
    tags: Sequence[str] = (),
) -> RunView:
    run, created = server.create_run(deployment_id, slug=slug, parameters=values, key=key, tags=tags)
    if not created:
        raise _live(slug, run)
    return _view(server, run)


def _echo(run: FlowRun) -> str | None:
    """Return the key of the run that must take this one's place; unset: it can be set back itself.

    A worker that starts a flow run is told of the cancellations of the last minute too, and would cancel a
    run that is set back so soon a second time.
    """
    state = run.state
    if state is None or state.type != "CANCELLED":
        return None
    young = datetime.now(UTC) - state.timestamp < ECHO
    return f"{run.id} after {state.id}" if young else None


def _command(values: Mapping[str, Any]) -> str:
    """Return the command that schedules runs of these parameters."""
    return "div run" if "command" in values else "slugline train"


def _live(slug: str, run: FlowRun) -> Live:
    how = run.state.name if run.state is not None else "about to be scheduled"
    name = shlex.quote(slug)
    if _command(run.train) == "div run":
        return Live(f"{slug} is live ({how}): `div logs -f {name}` shows it, `div cancel {name}` ends it.")
    return Live(
        f"{slug} is live ({how}): `slugline follow {name}` shows it, `slugline cancel {name}` ends it."
    )


def _is_live(state: State | None) -> bool:
    return state is None or state.live


def _view(server: Server, run: FlowRun) -> RunView:
    slug = run.train.get("slug") or next(
        (tag.removeprefix("slug:") for tag in run.tags if tag.startswith("slug:")), run.name
    )
    return RunView(
        slug=slug,
        flow_run_id=run.id,
        state=run.state.name if run.state is not None else "Unknown",
        message=run.state.message if run.state is not None else None,
        location=run.train.get("location"),
        scheduled=run.expected_start_time,
        started=run.start_time,
        ended=run.end_time,
        page=server.page(run.id),
        live=_is_live(run.state),
    )
