"""A flow run as Prefect tells of it: its states, its log, and what of its history still counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ASKED",
    "AWAITING_RETRY",
    "FLOW",
    "FLOWS",
    "WAITING",
    "FlowRun",
    "LogLine",
    "State",
    "same_start",
    "since_asked",
    "slug_tag",
]

FLOW = "train"
FLOWS = (FLOW, "ship")
"""The flows whose runs are kept alive."""
AWAITING_RETRY = {"type": "SCHEDULED", "name": "AwaitingRetry"}
ASKED = "Scheduled again by the user."
"""The message of a state with which a person sets a run back."""
WAITING = "Waiting"
"""The name of the Running state in which a run waits for its surroundings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A flow run's state; `id` is another after every change."""

    id: str
    type: str
    name: str
    timestamp: datetime
    message: str | None = None

    @property
    def final(self) -> bool:
        """Whether Prefect itself will do nothing more."""
        return self.type in ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")

    @property
    def live(self) -> bool:
        """Whether Prefect or rescue will still do something: a crashed run is rescued."""
        return not self.final or self.type == "CRASHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """A flow run, as much of it as we need. `parameters` is what the flow is called with."""

    id: str
    name: str
    state: State | None
    created: datetime
    deployment_id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    expected_start_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None

    @property
    def train(self) -> dict[str, Any]:
        """The JSON of its `TrainParameters` or `ShipParameters`."""
        values = self.parameters.get("parameters", {})
        return values if isinstance(values, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What was logged for a flow run; a traceback makes it many lines."""

    id: str
    timestamp: datetime
    message: str


def slug_tag(slug: str) -> str:
    """Return the tag that a slug's flow runs carry."""
    return f"slug:{slug}"


def since_asked(states: Sequence[State]) -> list[State]:
    """Return those of a run's states, oldest first, that came since a person last scheduled it.

    What has ended for good is scheduled again by a person only; a run that crashed, by rescue too.
    """
    for index in range(len(states) - 1, -1, -1):
        if states[index].message == ASKED:
            return list(states[index:])
        if not states[index].live:
            return list(states[index + 1 :])
    return list(states)


def same_start(states: Sequence[State], state_id: str) -> bool:
    """Say whether the flow process that began under this state is the newest one of the run's `states`.

    It may call itself waiting, and running again; a later one is scheduled first.
    """
    at = next((index for index, state in enumerate(states) if state.id == state_id), None)
    return at is not None and all(state.type == "RUNNING" for state in states[at:])
