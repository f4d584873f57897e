"""SIGKILL at every store operation of a life of checkpoints: before, after and half-way through each."""

import signal
import uuid

import pytest

from runtime.checkpoints import sweep as sweeping
from runtime.checkpoints.location import Location, now_ms, open_store
from runtime.checkpoints.sweep import sweep
from tests.support.checkpoints import SLUG, begin, same, state, the
from tests.support.faults import FaultPlan, operations_of
from tests.support.killed_run import killed_runs, run_to_the_end
from tests.support.seaweed import SHARED_BUCKET
from tests.support.stores import below

STEPS = [2, 4, 6]


@pytest.fixture(scope="module", params=["local", "s3"])
def place(request, tmp_path_factory):
    """A location, and the settings it needs; each run has one of its own below it."""
    if request.param == "local":
        return str(tmp_path_factory.mktemp("locations")), {}
    server = request.getfixturevalue("s3_server")
    return f"s3://{SHARED_BUCKET}/kill-points-{uuid.uuid4().hex[:12]}", server.env()


@pytest.fixture(scope="module")
def runs(place):
    with killed_runs(*place) as runs:
        yield runs


@pytest.fixture(scope="module")
def store(place):
    return open_store(*place)


def named_files(store):
    record = the(Location(store).record())
    tokens = {(entry.step, entry.attempt) for entry in record.checkpoints}
    segments = {segment.name for entry in record.checkpoints for segment in entry.segments}
    return tokens, segments


def check_that_nothing_is_lost(store, told):
    """What was told is there, a resume ends like an unbroken run, and a sweep leaves only what is named."""
    before = Location(store).find(slug=SLUG)
    assert before.refused == ()
    step = before.checkpoint.step if before.checkpoint else 0
    assert step >= max(told, default=0)
    assert step <= max([0, *told]) + 2
    if before.checkpoint:
        assert same(before.checkpoint.tensors, state(step))
    run_to_the_end(store, STEPS, lambda _: None)
    found = Location(store).find(slug=SLUG)
    assert found.refused == ()
    assert same(the(found.checkpoint).tensors, state(STEPS[-1]))
    assert the(the(found.record).ended).status == "done"
    attempt = begin(store)
    sweep(store, attempt.session, now_ms=lambda: now_ms() + 2 * sweeping.OLD_AFTER_MS)
    tokens, segments = named_files(store)
    for one in store.list():
        folder, _, name = one.key.partition("/")
        assert one.key == "run.json" or folder.startswith("step-") or folder == "segments", one.key
        if folder == "segments":
            assert name in segments
        if folder.startswith("step-"):
            assert (int(folder[5:]), int(name.split("-")[1])) in tokens
    assert same(the(Location(store).find(slug=SLUG).checkpoint).tensors, state(STEPS[-1]))


@pytest.mark.parametrize("when", ["after", "torn"])
def test_every_operation_may_be_the_last(runs, store, tmp_path, when):
    """Before an operation is after the one before it; before the first there is nothing to lose."""
    log = tmp_path / "log"
    assert runs.run(f"unbroken-{when}", FaultPlan(at=0, log=str(log)), STEPS).status == 0
    writes = [line for line in operations_of(log) if line.split()[0] in ("put", "put_if", "delete")]
    assert len(writes) > 20
    for number in range(1, len(writes) + 1):
        name = f"killed-{when}-{number}"
        ended = runs.run(name, FaultPlan().kill_at(number, when), STEPS)
        assert ended.status == -signal.SIGKILL, f"{number}: {writes[number - 1]}"
        check_that_nothing_is_lost(below(store, name), ended.told)


def test_the_resume_may_be_killed_too(runs, store):
    """Killed in its first save, and so is its resume, and the resume of that: each begins where it must."""
    told = [0]
    for at in (9, 3, 5, 8, 11):
        ended = runs.run("again", FaultPlan().kill_at(at), STEPS)
        assert ended.status == -signal.SIGKILL
        told += ended.told
    check_that_nothing_is_lost(below(store, "again"), told)
