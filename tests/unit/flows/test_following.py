"""Following a run: only what came since it was last scheduled, each line once, and its end once."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from flows.flow_runs import ASKED, FlowRun, LogLine, State
from flows.following import follow
from flows.scheduling import list_runs
from runtime.errors import Rejected

START = datetime(2027, 1, 1, tzinfo=UTC)


def state(second: int, kind: str, message: str = "", *, name: str | None = None) -> State:
    return State(
        id=f"s{second}",
        type=kind.upper(),
        name=name or kind,
        timestamp=START + timedelta(seconds=second),
        message=message,
    )


def line(second: float, message: str) -> LogLine:
    return LogLine(id=f"l{second}", timestamp=START + timedelta(seconds=second), message=message)


@dataclass
class FakeServer:
    """A run whose states and lines come one step at a time: each sleep of the follower is one."""

    past: list[State]
    steps: list[tuple[State | None, list[LogLine]]]
    lines: list[LogLine] = field(default_factory=list)
    all_runs: list[FlowRun] = field(default_factory=list)

    def runs(self, *, slug=None, limit=None, due_by=None):
        del due_by
        if slug is None:
            return self.all_runs[:limit]
        return [FlowRun(id="f", name=slug, state=self.past[-1], created=START)] if slug == "a" else []

    def page(self, flow_run_id):
        return flow_run_id

    def run(self, flow_run_id):
        return FlowRun(id=flow_run_id, name="a", state=self.past[-1], created=START)

    def states(self, flow_run_id):
        del flow_run_id
        return list(self.past)

    def logs(self, flow_run_id, *, since):
        del flow_run_id
        return sorted(
            (line for line in self.lines if line.timestamp >= since), key=lambda line: line.timestamp
        )

    def sleep(self, seconds: float) -> None:
        del seconds
        new, lines = self.steps.pop(0) if self.steps else (None, [])
        self.past += [new] if new is not None else []
        self.lines += lines


def followed(monkeypatch, server: FakeServer, slug: str = "a") -> list[str]:
    monkeypatch.setattr("flows.following.connect", lambda: contextlib.nullcontext(server))
    return list(follow(slug, sleep=server.sleep))


def test_what_earlier_schedulings_said_is_not_said_again(monkeypatch):
    server = FakeServer(
        past=[
            state(0, "Scheduled"),
            state(1, "Running"),
            state(9, "Completed"),
            state(20, "Scheduled", ASKED),
        ],
        lines=[line(2, "a: attempt 1 is running"), line(8, "Finished in state Completed('done')")],
        steps=[
            (state(21, "Running"), [line(22, "a: attempt 2 is running")]),
            (state(30, "Completed", "done"), []),
            (None, [line(29, "INFO: a: done at step 8"), line(30.1, "Finished in state Completed('done')")]),
        ],
    )
    assert followed(monkeypatch, server) == [
        f"a: Scheduled: {ASKED}",
        "a: attempt 2 is running",
        "a: Running",
        "INFO: a: done at step 8",
        "a: Completed: done",
    ]


def test_a_failure_is_one_line_with_the_reason_and_no_traceback_of_prefect(monkeypatch):
    server = FakeServer(
        past=[state(0, "Running")],
        steps=[
            (
                state(5, "Failed", "rejected: gpus"),
                [
                    line(1, "Task run failed with state: Rejected(message='gpus')\nNoneType: None"),
                    line(2, "Finished in state Failed('rejected: gpus')"),
                    line(3, "Engine execution exited with unexpected exception\nTraceback\n  File x"),
                    line(4, "Finished in state Failed('rejected: gpus')"),
                ],
            )
        ],
    )
    assert followed(monkeypatch, server) == ["a: Running", "a: Failed: rejected: gpus"]


def test_a_line_that_arrives_after_a_newer_one_is_not_missed_and_none_comes_twice(monkeypatch):
    server = FakeServer(
        past=[state(0, "Running")],
        lines=[line(5, "newer")],
        steps=[(None, [line(4, "late")]), (state(7, "Completed", "done"), [])],
    )
    assert followed(monkeypatch, server) == ["newer", "a: Running", "late", "a: Completed: done"]


def test_waiting_is_said_by_the_log_alone(monkeypatch):
    server = FakeServer(
        past=[state(0, "Running", "waiting: no bucket", name="Waiting")],
        lines=[line(1, "a: waiting: no bucket")],
        steps=[(state(2, "Running"), []), (state(3, "Completed", "done"), [])],
    )
    assert followed(monkeypatch, server) == ["a: waiting: no bucket", "a: Running", "a: Completed: done"]


def test_a_final_run_is_followed_through_its_last_round(monkeypatch):
    server = FakeServer(
        past=[
            state(0, "Running"),
            state(1, "Failed", "x"),
            state(9, "Running"),
            state(12, "Completed", "done"),
        ],
        lines=[line(0.5, "first"), line(10, "second"), line(12, "Finished in state Completed('done')")],
        steps=[],
    )
    assert followed(monkeypatch, server) == ["second", "a: Completed: done"]


def test_a_slug_that_is_none_is_said(monkeypatch):
    with pytest.raises(Rejected, match="no run 'b': `slugline list`"):
        followed(monkeypatch, FakeServer(past=[], steps=[]), "b")


def test_a_list_counts_runs_and_not_what_was_scheduled_for_them(monkeypatch):
    """A run that is resumed soon after its cancellation gets another flow run under its slug."""
    all_runs = [FlowRun(id=str(n), name=slug, state=None, created=START) for n, slug in enumerate("aaaabbc")]
    server = FakeServer(past=[], steps=[], all_runs=all_runs)
    monkeypatch.setattr("flows.scheduling.connect", lambda: contextlib.nullcontext(server))
    assert [run.slug for run in list_runs(limit=2)] == ["a", "b"]
    assert [run.slug for run in list_runs(limit=9)] == ["a", "b", "c"]
