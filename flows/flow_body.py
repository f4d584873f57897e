"""What the flows `train` and `ship` do: begin to look after a run, or leave it, and report how that ended."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from prefect.exceptions import Abort
from prefect.runtime import flow_run
from prefect.states import Completed, Crashed, Failed

from flows.assignment import Assignment, assign
from flows.care import Care
from flows.endings import Action, Decision
from flows.flow_runs import AWAITING_RETRY, FlowRun, since_asked
from flows.processes import host_name
from flows.records import record_of
from flows.run_page import report_end
from flows.scheduling import Live
from flows.server import Server, connect
from runtime.errors import Rejected, RunError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from flows.assignment import RunParameters
    from flows.care import Kind

__all__ = ["keep_run"]

HAND_BACK_S = 30.0


def keep_run(parameters: RunParameters, kind: Kind) -> State[Any]:
    """Look after the flow run in which this is called.

    Raises:
        Abort: another process looks after the run: no state is reported.
    """
    try:
        return _state(_care_for(parameters, kind).keep())
    except Live as error:
        return Failed(message=str(error))  # the run's page is the other one's
    except Rejected as error:
        _tell_page(parameters, str(error))
        return Failed(message=str(error))
    except RunError as error:
        # No last word on the run: rescue schedules it again, and gives up when that was in vain too often.
        return Crashed(message=str(error))
    except Exception as error:
        # A mistake of ours. Prefect has the run fail with its traceback, and nobody looks at it again.
        _tell_page(parameters, f"{type(error).__name__}: {error}; the flow run's log in Prefect has more")
        raise


def _tell_page(parameters: RunParameters, reason: str) -> None:
    if parameters.slug is not None:
        report_end(record_of(parameters), {"state": "failed", "reason": reason}, os.environ)


def _care_for(parameters: RunParameters, kind: Kind) -> Care:
    with connect() as server:
        run = server.run(str(flow_run.id))
        assignment = assign(server, run, parameters, environment=os.environ, host=host_name())
        if (first := _first_of(server, run, assignment)) is not None:
            raise Live(f"{first.name} is live as flow run {first.id}: cancel that first.")
        if assignment.host not in (None, host_name()):
            _hand_back(server, run, assignment)
        asked = frozenset(state.id for state in since_asked(server.states(run.id)))
    return Care(assignment.parameters, run, asked, kind)


def _state(decision: Decision) -> State[Any]:
    match decision.action:
        case Action.COMPLETE:
            return Completed(message=decision.reason)
        case Action.FAIL:
            return Failed(message=decision.reason)
        case _:
            raise Abort(decision.reason)


def _first_of(server: Server, run: FlowRun, assignment: Assignment) -> FlowRun | None:
    """Return the older flow run that is live under the same slug; unset: there is none."""
    for other in server.runs(slug=assignment.parameters.slug):
        live = other.state is None or other.state.live
        if live and other.id != run.id and other.created < run.created:
            return other
    return None


def _hand_back(server: Server, run: FlowRun, assignment: Assignment) -> None:
    """Leave the run to a worker of the host that holds its location."""
    later = datetime.now(UTC) + timedelta(seconds=HAND_BACK_S)
    message = f"{assignment.parameters.location} is on {assignment.host}: waiting for a worker there"
    state = {**AWAITING_RETRY, "state_details": {"scheduled_time": later.isoformat()}}
    server.set_state(run.id, state, message=message, force=True)
    raise Abort(message)
