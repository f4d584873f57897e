"""What a flow process reports when it could not begin to look after its run."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from flows import flow_body
from flows.assignment import Assignment
from flows.flow_runs import FlowRun, State
from flows.parameters import TrainParameters
from flows.scheduling import Live
from flows.train import Experiments
from runtime.errors import Rejected, Unavailable

NOW = datetime(2027, 1, 1, tzinfo=UTC)
PARAMETERS = TrainParameters(experiment="m", slug="a", location="s3://bucket/a")


@pytest.mark.parametrize(("error", "state"), [(Unavailable("away"), "CRASHED"), (Rejected("bad"), "FAILED")])
def test_a_start_that_its_surroundings_prevent_is_left_to_rescue_and_a_mistake_is_not(
    monkeypatch, error, state
):
    """A Prefect or a work folder that was away for a moment ended the run as Failed, for good."""

    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(flow_body, "_care_for", refuse)
    reported = flow_body.keep_run(PARAMETERS, Experiments())
    assert (reported.type.value, reported.message) == (state, str(error))


@pytest.mark.parametrize(
    ("kind", "leaves"), [("RUNNING", True), ("CRASHED", True), ("FAILED", False), ("CANCELLED", False)]
)
def test_the_newer_of_two_flow_runs_of_a_slug_leaves_while_the_older_is_live(kind, leaves):
    """Rescue schedules a crashed one again: then there were two."""
    state = State(id="s", type=kind, name=kind, timestamp=NOW)
    older = FlowRun(id="older", name="a", state=state, created=NOW)
    newer = FlowRun(id="newer", name="a", state=state, created=NOW + timedelta(seconds=1))
    server: Any = SimpleNamespace(runs=lambda **_: [newer, older])
    first = flow_body._first_of(server, newer, Assignment(parameters=PARAMETERS, host=None))
    assert (first is older) is leaves


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Rejected("bad"), "bad"),
        (Live("another is live"), None),
        (Unavailable("away"), None),
        (KeyError("x"), "KeyError: 'x'; the flow run's log in Prefect has more"),
    ],
    ids=["rejected", "live", "unavailable", "our mistake"],
)
def test_the_page_of_a_run_that_ends_before_it_begins_says_so(monkeypatch, error, told):
    """It said for ever that the run is scheduled. That of a slug which is live is another flow run's."""
    said: list[tuple[str, dict[str, Any]]] = []

    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(flow_body, "_care_for", refuse)
    monkeypatch.setattr(
        flow_body, "report_end", lambda record, word, _environment: said.append((record.slug, word))
    )
    with contextlib.suppress(KeyError):
        flow_body.keep_run(PARAMETERS, Experiments())
    assert said == ([] if told is None else [("a", {"state": "failed", "reason": told})])
