"""What a first start decides for good: slug, location, host."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from flows.assignment import assign, assigned_host, slug_of
from flows.flow_runs import FlowRun
from flows.parameters import TrainParameters, from_json
from runtime.errors import Rejected

WHEN = datetime(2027, 1, 1, 4, 0, tzinfo=timezone(timedelta(hours=1)))
HERE = {"SLUGLINE_LOCATION": "s3://bucket/runs/"}


class Prefect:
    """Keeps what is decided, as the server would."""

    def __init__(self, run: FlowRun) -> None:
        self.run, self.updates = run, 0

    def deployment_name(self, _deployment_id: str) -> str:
        return "nightly"

    def update(self, _flow_run_id: str, **values: Any) -> None:
        self.updates += 1
        self.run = replace(self.run, **values)


def flow_run(**changes: Any) -> FlowRun:
    return FlowRun(
        **{"id": "f", "name": "n", "state": None, "created": WHEN, "deployment_id": "d", **changes}
    )


def parameters(**changes: Any) -> TrainParameters:
    return TrainParameters(experiment="m", **changes)


def assigned(prefect: Prefect, given: TrainParameters, *, environment=HERE, host: str = "h1"):
    return assign(prefect, prefect.run, given, environment=environment, host=host)  # type: ignore[arg-type] # as above


def test_a_scheduled_run_has_a_slug_of_its_deployment_and_time_in_utc():
    run = flow_run(expected_start_time=WHEN)
    assert slug_of(run, parameters(), deployment="nightly") == "nightly-20270101T030000Z"


def test_a_slug_of_its_own_comes_first_and_without_either_the_run_is_refused():
    assert slug_of(flow_run(expected_start_time=WHEN), parameters(slug="a"), deployment="nightly") == "a"
    with pytest.raises(Rejected, match="slug is missing"):
        slug_of(flow_run(), parameters(), deployment="nightly")


def test_what_was_decided_once_stays_whatever_the_next_worker_would_decide():
    prefect = Prefect(flow_run(expected_start_time=WHEN, parameters={"parameters": parameters().to_json()}))
    first = assigned(prefect, parameters())
    assert first.parameters.location == "s3://bucket/runs/nightly-20270101T030000Z"
    assert prefect.run.name == "nightly-20270101T030000Z"
    assert prefect.run.tags == ["slug:nightly-20270101T030000Z"]
    kept = from_json(prefect.run.train)
    again = assigned(prefect, kept, environment={"SLUGLINE_LOCATION": "s3://elsewhere"}, host="h2")
    assert again == first
    assert prefect.updates == 1


def test_the_host_of_a_local_location_is_the_first_that_used_it():
    prefect = Prefect(flow_run())
    assert assigned(prefect, parameters(slug="a", location="/data/a")).host == "h1"
    assert assigned_host(prefect.run) == "h1"
    assert assigned(prefect, parameters(slug="a", location="/data/a"), host="h2").host == "h1"


def test_a_location_that_all_reach_belongs_to_no_host():
    prefect = Prefect(flow_run())
    assert assigned(prefect, parameters(slug="a/b")).host is None
    assert from_json(prefect.run.train).location == "s3://bucket/runs/a%2Fb"


def test_a_run_without_any_location_is_refused():
    with pytest.raises(Rejected, match="a has no location: give one, or set SLUGLINE_LOCATION"):
        assigned(Prefect(flow_run()), parameters(slug="a"), environment={})


def test_a_run_that_moves_to_where_all_reach_it_is_no_longer_bound_to_a_host():
    """It was handed back for ever by every worker but that of the host of its old disk."""
    prefect = Prefect(flow_run(tags=["host:h1", "slug:a"]))
    moved = assigned(prefect, parameters(slug="a", location="s3://bucket/a"), host="h2")
    assert moved.host is None
    assert assigned_host(prefect.run) is None
