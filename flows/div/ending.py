"""`div cancel` and `div resume`: a run is ended, or goes on."""

from __future__ import annotations

from flows.div.show import RunName  # noqa: TC001 - Typer reads the annotations
from infra.client.output import print_text, shown

__all__ = ["cancel", "resume"]


def cancel(run: RunName) -> None:
    """Cancel a run. It may save within its notice, and stays cancelled until you resume it."""
    from flows.stack import use_stack

    use_stack()
    from flows import scheduling
    from flows.div.api import connect

    with connect() as api:
        name = str(api.run(run)["name"])
        view = scheduling.cancel(name)
        if view.state == "Cancelled":  # it had no process yet, which would say so
            api.tell(name, {"state": "cancelled", "reason": "cancelled by the user"})
    print_text(f"{shown(name)}: {view.state.lower()}")


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
        api.tell(name, {"state": "scheduled", "reason": None, "flow_run_id": view.flow_run_id})
    print_text(f"{shown(name)}: scheduled again: {view.page}")
