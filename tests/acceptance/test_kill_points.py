"""Killed anywhere, a run ends with the bits of one that was not. Equality everywhere, no tolerance."""

from __future__ import annotations

import random
import re
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.faults import FaultPlan, operations_of
from tests.support.forge import CallPlan
from tests.support.runs import SmallRun, is_point, notes, point_key

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.forge import Forge
    from tests.support.seaweed import Bucket

UPDATE = "runtime.training.update:Updater.__call__"
BACKWARD = "runtime.training.precision:Precision.backward"
OPTIMIZER = "torch.optim.adamw:AdamW.step"
EVALUATION_BATCH = "runtime.training.evaluation:Evaluator._batch"
EVALUATION = "runtime.training.evaluation:Evaluator.__call__"
STAGE = "runtime.training.loop:Loop._change_stage"
ANNOTATE = "runtime.events.stream:EventStream.annotate"
WRITE = "runtime.events.lines:JsonlTarget.write"
SNAPSHOT = "runtime.checkpoints.snapshot:Snapshots.take"
CLAIM = "runtime.checkpoints.location:Location.claim"
LOAD = "runtime.experiment.frontend:load_experiment"
RESTORE = "runtime.training.state:TrainingState.restore"
FIND = "runtime.checkpoints.location:Location.find"
END = "runtime.checkpoints.attempt:Attempt.end"

EVERY_STEP = [(UPDATE, at, "before") for at in range(1, 13)]
INSIDE_A_MICROBATCH = [(BACKWARD, 1, "before"), (BACKWARD, 10, "after"), (BACKWARD, 19, "before")]
INSIDE_THE_OPTIMIZER = [(OPTIMIZER, 1, "before"), (OPTIMIZER, 5, "after"), (OPTIMIZER, 12, "after")]
INSIDE_AN_EVALUATION = [
    (EVALUATION_BATCH, 1, "before"),  # at the start
    (EVALUATION_BATCH, 4, "after"),  # the middle of one at boundary 4
    (EVALUATION_BATCH, 6, "before"),  # between two of one boundary
    (EVALUATION, 3, "after"),
    (EVALUATION_BATCH, 16, "before"),  # the last evaluation of the run
]
AT_A_STAGE_CHANGE = [(STAGE, 5, "before"), (STAGE, 5, "after"), (STAGE, 9, "after"), (ANNOTATE, 1, "before")]
ELSEWHERE = [
    (LOAD, 1, "before"),
    (LOAD, 1, "after"),
    (CLAIM, 1, "after"),
    (WRITE, 1, "before"),
    (WRITE, 1, "after"),
    (WRITE, 12, "before"),
    (SNAPSHOT, 1, "before"),
    (SNAPSHOT, 1, "after"),
]
POINTS: list[tuple[str, int, Any]] = [
    *EVERY_STEP,
    *INSIDE_A_MICROBATCH,
    *INSIDE_THE_OPTIMIZER,
    *INSIDE_AN_EVALUATION,
    *AT_A_STAGE_CHANGE,
    *ELSEWHERE,
]


def named(point: tuple[str, int, str]) -> str:
    call, at, when = point
    return f"{when}-{call.rpartition(':')[2]}-{at}"


every_point = pytest.mark.parametrize("point", POINTS, ids=named)


class Unbroken:
    """The run that nobody disturbed: its outcome, and its events in order."""

    def __init__(self, run: SmallRun) -> None:
        self.run = run
        run.go()
        self.outcome = run.outcome()
        self.story = story(run)


@pytest.fixture(scope="module")
def unbroken(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    return Unbroken(SmallRun(forge, tmp_path_factory.mktemp("unbroken")))


def story(run: SmallRun) -> list[Any]:
    """Every point with its value, and every change of stage, in the order in which they were written."""
    told: list[Any] = []
    for event in run.events():
        if is_point(event):
            told.append((point_key(event), event["value"]))
        elif event.get("annotation", "").startswith("stage "):
            told.append((event["step"], event["annotation"]))
    return told


def kinds(run: SmallRun) -> list[str]:
    return [event["kind"] for event in run.events() if event["kind"] != "metric"]


def check_file_after_a_kill(run: SmallRun, unbroken: Unbroken) -> None:
    """Strictly parseable; a repeated point repeats its value; after done there is at most a resume's own."""
    values: dict[Any, Any] = {}
    for event in run.events():
        if is_point(event):
            assert values.setdefault(point_key(event), event["value"]) == event["value"]
    assert values == dict(unbroken.outcome.points)
    told = [event["kind"] for event in run.events()]
    assert told[told.index("done") :] in (["done"], ["done", "open", "done"])


@every_point
def test_killed_outright_a_resume_ends_with_the_same_bits(
    forge: Forge, tmp_path: Path, unbroken: Unbroken, point: tuple[str, int, Any]
):
    call, at, when = point
    run = SmallRun(forge, tmp_path)
    run.go(calls=CallPlan(call=call, at=at, when=when), code=-signal.SIGKILL)
    run.go()
    run.outcome().assert_equals(unbroken.outcome)
    check_file_after_a_kill(run, unbroken)


@every_point
def test_asked_to_stop_a_resume_repeats_nothing_and_leaves_nothing_out(
    forge: Forge, tmp_path: Path, unbroken: Unbroken, point: tuple[str, int, Any]
):
    call, at, when = point
    run = SmallRun(forge, tmp_path)
    run.go(calls=CallPlan(call=call, at=at, when=when, signum=signal.SIGTERM), code=128 + signal.SIGTERM)
    run.go()
    run.outcome().assert_equals(unbroken.outcome)
    assert story(run) == unbroken.story
    assert kinds(run)[-1] == "done"


def test_a_signal_that_finds_nothing_left_to_skip_lets_the_run_end_as_done(
    forge: Forge, tmp_path: Path, unbroken: Unbroken
):
    run = SmallRun(forge, tmp_path)
    run.go(calls=CallPlan(call=EVALUATION_BATCH, at=17, when="after", signum=signal.SIGTERM))
    run.outcome().assert_equals(unbroken.outcome)
    assert story(run) == unbroken.story
    assert not [text for text in notes(run.events()) if text.startswith("interrupted")]


@pytest.mark.parametrize("call", [FIND, CLAIM, RESTORE])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_resume_that_is_itself_stopped_while_it_starts_changes_nothing(
    forge: Forge, tmp_path: Path, unbroken: Unbroken, call: str, signum: signal.Signals
):
    run = SmallRun(forge, tmp_path)
    run.go(calls=CallPlan(call=UPDATE, at=9, signum=signal.SIGTERM), code=143)
    code = -signum if signum == signal.SIGKILL else 143
    for _ in range(2):
        run.go(calls=CallPlan(call=call, when="after", signum=signum), code=code)
    run.go()
    run.outcome().assert_equals(unbroken.outcome)
    assert story(run) == unbroken.story


def test_killed_between_the_last_checkpoint_and_done_the_run_still_ends(
    forge: Forge, tmp_path: Path, unbroken: Unbroken
):
    run = SmallRun(forge, tmp_path)
    run.go(calls=CallPlan(call=END), code=-signal.SIGKILL)
    run.go()
    run.outcome().assert_equals(unbroken.outcome)
    assert kinds(run)[-2:] == ["open", "done"]


SAVING = FaultPlan(key="step-|segments/|run.json")
"""Everything that a save, its publishing and its tidying change at the location; operation 1 is the claim."""


@pytest.fixture(scope="module")
def num_operations(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many of these an unbroken run makes; at most, since a save that is late leaves some out."""
    folder = tmp_path_factory.mktemp("operations")
    log = folder / "operations"
    SmallRun(forge, folder, env=replace(SAVING, at=0, log=str(log)).env()).go()
    changes = [line for line in operations_of(log) if re.match(r"(put|put_if|delete) (step-|run)", line)]
    saves = [line.split()[1] for line in changes if line.startswith("put")]
    assert [key.rpartition("/")[2].partition("-")[0] for key in saves[-4:]] == [
        "tensors", "manifest", "run.json", "run.json",
    ], "a save is a shard, a manifest, the record; then comes the run's end"  # fmt: skip
    return len(changes)


# Before an operation is after the one before it; before the first there is nothing to lose.
halfway_or_after = pytest.mark.parametrize("when", ["torn", "after"])


@halfway_or_after
def test_killed_at_every_file_operation_of_a_save_the_run_resumes_with_the_same_bits(
    forge: Forge, tmp_path: Path, unbroken: Unbroken, num_operations: int, when: Any
):
    for at in range(1, num_operations + 1):
        run = SmallRun(forge, tmp_path / str(at))
        kill_in_the_store_then_resume(run, unbroken, SAVING.kill_at(at, when))


@halfway_or_after
def test_killed_at_every_http_operation_of_a_save_the_run_resumes_with_the_same_bits(
    small: SmallRun, unbroken: Unbroken, bucket: Bucket, num_operations: int, when: Any
):
    for at in range(1, num_operations + 1):
        location = f"{bucket.url}/{at}"
        run = SmallRun(small.forge, small.folder / str(at), location=location, env=bucket.env)
        kill_in_the_store_then_resume(run, unbroken, SAVING.kill_at(at, when))


def kill_in_the_store_then_resume(run: SmallRun, unbroken: Unbroken, plan: FaultPlan) -> None:
    """How many operations there are depends on which saves were in time: a plan may hit nothing."""
    code = run.start(env=plan.env()).wait()
    assert code in {0, -signal.SIGKILL}
    if code:
        run.go()
    run.outcome().assert_equals(unbroken.outcome)
    check_file_after_a_kill(run, unbroken)


def test_200_signals_at_random_moments_repeat_nothing_and_lose_nothing(forge: Forge, tmp_path: Path):
    """Each attempt gets SIGTERM or SIGINT somewhere between its first line and its end; two at a time."""
    flags = ("--steps", "300", "--eval-every", "40", "--knob", "checkpoint_every=30")
    unbroken = Unbroken(SmallRun(forge, tmp_path / "unbroken", flags=flags))
    moments, num_hit, number = random.Random(17), 0, 0
    while num_hit < 200:
        number += 1
        going = [SmallRun(forge, tmp_path / f"{number}-{one}", flags=flags) for one in range(2)]
        runs = list(going)
        while going:
            attempts = [run.start() for run in going]
            signum = moments.choice([signal.SIGTERM, signal.SIGINT])
            time.sleep(moments.uniform(0, 0.3))  # the moment is what is random here
            num_hit += sum(attempt.signal(signum) for attempt in attempts)
            codes = [attempt.wait() for attempt in attempts]
            assert set(codes) <= {128 + signum, 0, -signum}, [attempt.err.read_text() for attempt in attempts]
            going = [run for run, code in zip(going, codes, strict=True) if code]
        for run in runs:
            run.outcome().assert_equals(unbroken.outcome)
            assert story(run) == unbroken.story
