"""What a cancellation is answered with, at a Prefect that has the run in each of its states."""

import contextlib

import pytest

from flows.scheduling import cancel
from runtime.errors import Rejected
from tests.support.one_run import OneRun


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
    monkeypatch.setattr("flows.scheduling.connect", lambda: contextlib.nullcontext(OneRun(kind)))
    done = cancel("a")
    assert (done.run.state, done.begun) == (becomes, begun)


@pytest.mark.parametrize("kind", ["COMPLETED", "FAILED", "CANCELLED"])
def test_a_run_that_is_over_is_not_cancelled(monkeypatch, kind):
    monkeypatch.setattr("flows.scheduling.connect", lambda: contextlib.nullcontext(OneRun(kind)))
    with pytest.raises(Rejected, match="nothing to cancel"):
        cancel("a")
