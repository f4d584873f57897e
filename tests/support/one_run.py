"""What a command asks of a Prefect server about a single run, in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flows.flow_runs import FlowRun, State

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OneRun"]

NOW = datetime(2027, 1, 1, tzinfo=UTC)


class OneRun:
    """A Prefect server with one run, in the state `kind`."""

    def __init__(self, kind: str, *, slug: str = "a", parameters: Mapping[str, Any] | None = None) -> None:
        state = State(id="s", type=kind, name=kind.title(), timestamp=NOW)
        given = {"parameters": dict(parameters or {})}
        self.held = FlowRun(id="f", name=slug, created=NOW, state=state, parameters=given)

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
