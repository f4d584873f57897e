"""`div cancel` and `div resume`: a run is ended, or goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.div.show import RunName  # noqa: TC001 - Typer reads the annotations
from infra.client.errors import Refused, Unavailable
from infra.client.output import print_text, say, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flows.div.api import RunsApi

__all__ = ["cancel", "resume"]


def cancel(run: RunName) -> None:
    """Cancel a run. It may save within its notice, and stays cancelled until you resume it."""
    from flows.stack import use_stack

    use_stack()
    from flows import scheduling
    from flows.div.api import connect

    with connect() as api:
        name, attempt = _found(api, run)
        done = scheduling.cancel(name)
        if not done.begun:  # nobody else would say so
            said = {"state": "cancelled", "reason": "cancelled by the user"}
            _tell(api, name, said if attempt is None else said | {"attempt": attempt})
    print_text(f"{shown(name)}: {done.run.state.lower()}")


def resume(run: RunName) -> None:
    """Schedule a run that is over again, with what it was launched with."""
    from flows.stack import use_stack

    use_stack()
    from flows import scheduling
    from flows.div.api import connect

    with connect() as api:
        found = api.run(run)
        name = str(found["name"])
        view = scheduling.resume(name)
        # As of the attempts so far: a newer one that has begun meanwhile has the word.
        said = {"state": "scheduled", "reason": None, "attempt": found["attempt"]}
        _tell(api, name, said | {"flow_run_id": view.flow_run_id})
    print_text(f"{shown(name)}: scheduled again: {view.page}")


def _found(api: RunsApi, run: str) -> tuple[str, int | None]:
    """Return a run's name, which Prefect knows it by, and its attempt.

    With Metrics away, what was given must be the name, and the attempt is unset.
    """
    try:
        found = api.run(run)
    except Unavailable as error:
        say(f"{shown(run)} is taken for the run's name: {error}")
        return run, None
    return str(found["name"]), int(found["attempt"])


def _tell(api: RunsApi, name: str, said: Mapping[str, Any]) -> None:
    """Have the run's page say what has been done; that it cannot now undoes nothing."""
    try:
        api.tell(name, said)
    except Unavailable as error:
        say(f"the page of {shown(name)} does not say so yet: {error}")
    except Refused as refused:
        if refused.code != "superseded":
            raise
