"""What a cancellation is answered with, at a Prefect that has the run in each of its states."""

import contextlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from flows.flow_runs import FlowRun, State
from flows.scheduling import cancel
from runtime.errors import Rejected

NOW = datetime(2027, 1, 1, tzinfo=UTC)


class Prefect:
    """One run, in a state."""

    def __init__(self, kind: str) -> None:
        state = State(id="s", type=kind, name=kind.title(), timestamp=NOW)
        self.held = FlowRun(id="f", name="a", created=NOW, state=state)

    def runs(self, *, slug: str) -> list[FlowRun]:
        return [self.held] if slug == self.held.name else []

    def run(self, flow_run_id: str) -> FlowRun:
        assert flow_run_id == self.held.id
        return self.held

    def set_state(self, flow_run_id: str, state: dict[str, str], *, message: str) -> None:
        kind = state["type"]
        told = State(id="t", type=kind, name=kind.title(), timestamp=NOW, message=message)
        self.held = replace(self.run(flow_run_id), state=told)

    def page(self, flow_run_id: str) -> str:
        return f"page of {flow_run_id}"


@pytest.mark.parametrize(
    ("kind", "becomes", "begun"),
    [
        ("SCHEDULED", "Cancelled", False),
        ("PENDING", "Cancelling", False),
        ("RUNNING", "Cancelling", True),
        ("CRASHED", "Cancelled", False),
    ],
)
def test_only_a_run_whose_flow_process_has_begun_is_told_of_by_it(monkeypatch, kind, becomes, begun):
    """Prefect ends the process of a pending run while it starts."""
    monkeypatch.setattr("flows.scheduling.connect", lambda: contextlib.nullcontext(Prefect(kind)))
    done = cancel("a")
    assert (done.run.state, done.begun) == (becomes, begun)


@pytest.mark.parametrize("kind", ["COMPLETED", "FAILED", "CANCELLED"])
def test_a_run_that_is_over_is_not_cancelled(monkeypatch, kind):
    monkeypatch.setattr("flows.scheduling.connect", lambda: contextlib.nullcontext(Prefect(kind)))
    with pytest.raises(Rejected, match="nothing to cancel"):
        cancel("a")
