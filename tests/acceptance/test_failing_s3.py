"""Whole runs beside a store that fails: no corrupt resume, on where it can go on, every refusal said."""

from __future__ import annotations

import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runtime.checkpoints.location import open_store
from runtime.checkpoints.rebuild import rebuild_record
from tests.support import gates
from tests.support.forge import QUICK_RETRIES, CallPlan, settings
from tests.support.gates import GATED, await_checkpoint, await_held, hold, let_go
from tests.support.ports import free_port
from tests.support.runs import Outcome, SmallRun
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from runtime.checkpoints.record import RunRecord
    from tests.support.forge import Forge, ForkedRun
    from tests.support.s3_proxy import Kind, S3Proxy
    from tests.support.seaweed import Bucket

UPDATE = "runtime.training.update:Updater.__call__"

ONE_TRY = settings({"runtime.checkpoints.s3:CONTROL_TRIES": 1})
"""For a store that stays broken: the client's own second try and the pause before it change nothing."""

IMPATIENT = settings(
    {"runtime.checkpoints.s3:CONTROL_READ_S": 1.0, "runtime.checkpoints.s3:BULK_READ_S": 0.5}
)
"""A server that hangs is given up on after a second or half of one, not after 10 or 30."""

LESS_IMPATIENT = settings(
    {"runtime.checkpoints.s3:CONTROL_READ_S": 3.0, "runtime.checkpoints.s3:BULK_READ_S": 1.0}
)
"""Where the second try is the last one, and must be answered, however busy the machine is."""

OUTAGES: list[tuple[Kind, str]] = [
    ("error", "answers 500"),
    ("slow_down", "answers 503"),
    ("forbid", "refuses access"),
    ("reset", "cannot be reached"),
    ("hang", "cannot be reached"),
]
"""What is wrong, and how the log names it."""


@dataclass(slots=True)
class Place:
    """A run whose location is behind a proxy, which works unless told otherwise."""

    run: SmallRun
    proxy: S3Proxy
    bucket: Bucket

    def keys(self, part: str = "") -> list[str]:
        return [key for key in self.bucket.keys() if part in key]  # noqa: SIM118  (no dict)

    def get(self, key: str) -> bytes:
        reply = self.bucket.server.client().get_object(**self._object(key))
        return bytes(reply["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        self.bucket.server.client().put_object(**self._object(key), Body=data)

    def delete(self, key: str) -> None:
        self.bucket.server.client().delete_object(**self._object(key))

    def _object(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket.name, "Key": f"{self.bucket.prefix}/{key}"}

    @property
    def record(self) -> RunRecord:
        self.proxy.heal()
        record = gates.record(self.run)
        assert record is not None
        return record

    @property
    def steps(self) -> list[int]:
        return [entry.step for entry in self.record.checkpoints]


@pytest.fixture(scope="module")
def unbroken(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = SmallRun(forge, tmp_path_factory.mktemp("unbroken"))
    run.go()
    return run.outcome()


@pytest.fixture
def place(forge: Forge, bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path) -> Place:
    """A location where nothing is yet."""
    env = bucket.server.env(s3_proxy.endpoint) | QUICK_RETRIES
    return Place(SmallRun(forge, tmp_path, bucket.url, env, source=GATED), s3_proxy, bucket)


@pytest.fixture(scope="module")
def interrupted(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, bytes]]:
    """The event file and the objects of a run that was interrupted at step 7: checkpoints of 5 and 7."""
    folder = tmp_path_factory.mktemp("interrupted")
    run = SmallRun(forge, folder, source=GATED)
    run.go(calls=CallPlan(call=UPDATE, at=7, signum=signal.SIGTERM), code=143)
    location = folder / "location"
    files = {
        path.relative_to(location).as_posix(): path.read_bytes()
        for path in location.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    assert {key.split("/")[0] for key in files} == {"run.json", "step-00000005", "step-00000007"}
    return run.file.read_bytes(), files


@pytest.fixture
def resuming(place: Place, interrupted: tuple[bytes, dict[str, bytes]]) -> Place:
    """A location that holds the checkpoints of steps 5 and 7."""
    events, files = interrupted
    place.run.file.write_bytes(events)
    for key, data in files.items():
        place.put(key, data)
    return place


def says(run: ForkedRun, text: str) -> bool:
    """Whether a line of the log has this, whatever progress is beside it."""
    return any(text in line for line in run.said.splitlines())


def await_said(run: ForkedRun, text: str) -> None:
    wait_until(lambda: says(run, text), within_s=40, poll_s=0.02, what=lambda: f"{text!r} in {run.said}")


def begins_at(run: SmallRun) -> int:
    """The step of the checkpoint that the newest attempt began from; 0 where it began anew."""
    steps = [0]
    for event in run.events():
        if event["kind"] == "open":
            steps.append(0)
        if event.get("annotation", "").startswith("resumed from "):
            steps[-1] = event["step"]
    return steps[-1]


# The start of a run


def test_a_run_does_not_begin_where_its_location_fails_and_nothing_is_touched(
    place: Place, unbroken: Outcome
):
    for kind, said in OUTAGES:
        place.proxy.fail(kind)
        refused = place.run.go(env=IMPATIENT if kind == "hang" else ONE_TRY, code=75)
        assert said in refused.said.splitlines()[-1], kind
        assert not place.run.file.exists()
        place.proxy.heal()
    assert place.keys() == []
    place.run.go()
    place.run.outcome().assert_equals(unbroken)


def test_a_run_does_not_begin_in_a_bucket_that_is_missing(place: Place):
    place.run.location = "s3://no-such-bucket-here/run"
    refused = place.run.go(code=75)
    assert says(refused, "has no bucket no-such-bucket-here; create it, or correct the location")
    assert not place.run.file.exists()


def test_a_run_does_not_begin_where_it_may_only_read(place: Place):
    place.proxy.fail("forbid", method="PUT")
    refused = place.run.go(code=75)
    assert says(refused, "refuses access (AccessDenied)")
    assert not place.run.file.exists()
    assert place.keys() == []


def test_where_it_may_not_delete_a_run_keeps_everything_and_says_so(place: Place, unbroken: Outcome):
    place.proxy.fail("forbid", method="POST|DELETE")
    for step in (7, 10):
        hold(place.run, step)
    running = place.run.start(env=ONE_TRY)
    for step in (5, 10):
        await_checkpoint(place.run, step)
        let_go(place.run, 7 if step == 5 else 10)
    assert running.wait() == 0, running.said
    assert says(running, "old checkpoints are left for a later attempt to delete")
    assert len(place.keys("/manifest")) == 3
    assert place.steps == [10, 12]
    place.run.outcome().assert_equals(unbroken)


@pytest.mark.parametrize(
    ("location", "env", "said"),
    [
        ("s3://Not_A_Bucket/run", {}, "got 's3://Not_A_Bucket/run'"),
        ("gs://bucket/run", {}, "--location must be a path or s3://bucket/prefix"),
        (None, {"AWS_ENDPOINT_URL": "nonsense"}, "AWS_ENDPOINT_URL is no URL"),
        (None, {"AWS_SECRET_ACCESS_KEY": ""}, "set both"),
    ],
)
def test_a_location_that_can_never_work_is_the_users_mistake(
    place: Place, location: str | None, env: dict[str, str], said: str
):
    place.run.location = location or place.run.location
    refused = place.run.go(env=env, code=2)
    assert said in refused.said.splitlines()[-1]
    assert not place.run.file.exists()


# The start of a resume


def assert_untouched(place: Place, interrupted: tuple[bytes, dict[str, bytes]]) -> None:
    place.proxy.heal()
    events, files = interrupted
    assert place.run.file.read_bytes() == events
    assert {key: place.get(key) for key in place.keys()} == files  # noqa: SIM118  (no dict)


@pytest.mark.parametrize("path", [".*", "step-00000007/tensors"], ids=["all", "the newest checkpoint"])
def test_a_resume_does_not_begin_where_it_cannot_read_and_no_checkpoint_is_refused(
    resuming: Place, interrupted: Any, unbroken: Outcome, path: str
):
    for kind, said in OUTAGES:
        resuming.proxy.fail(kind, path=path)
        refused = resuming.run.go(env=IMPATIENT if kind == "hang" else ONE_TRY, code=75)
        assert said in refused.said.splitlines()[-1], kind
        assert_untouched(resuming, interrupted)
    resuming.run.go()
    assert begins_at(resuming.run) == 7
    resuming.run.outcome().assert_equals(unbroken)


def test_a_resume_whose_bucket_is_gone_says_so(resuming: Place, interrupted: Any):
    there, resuming.run.location = resuming.run.location, "s3://no-such-bucket-here/run"
    refused = resuming.run.go(code=75)
    assert says(refused, "has no bucket no-such-bucket-here")
    resuming.run.location = there
    assert_untouched(resuming, interrupted)


def test_a_claim_that_cannot_be_written_changes_nothing(resuming: Place, interrupted: Any):
    for kind, said in OUTAGES[:-1]:
        resuming.proxy.fail(kind, method="PUT", path="run.json")
        refused = resuming.run.go(code=75)
        assert said in refused.said.splitlines()[-1], kind
        assert_untouched(resuming, interrupted)


def test_a_claim_whose_reply_is_lost_is_the_same_claim(resuming: Place, unbroken: Outcome):
    resuming.proxy.fail("lose_reply", method="PUT", path="run.json", times=1)
    resuming.run.go()
    assert resuming.record.attempt.number == 2
    resuming.run.outcome().assert_equals(unbroken)


@pytest.mark.parametrize("kind", ["error", "slow_down", "reset", "truncate", "corrupt", "hang"])
def test_a_glitch_in_every_file_costs_a_second_read(resuming: Place, unbroken: Outcome, kind: Kind):
    glitches = [
        resuming.proxy.fail(kind, method="GET", path=path, times=1)
        for path in ("run.json", "step-00000007/manifest", "step-00000007/tensors")
    ]
    run = resuming.run.go(env=LESS_IMPATIENT if kind == "hang" else None)
    assert [glitch.hits for glitch in glitches] == [1, 1, 1]
    assert not says(run, "refused")
    assert resuming.record.attempt.number == 2
    assert begins_at(resuming.run) == 7
    resuming.run.outcome().assert_equals(unbroken)


def test_wrong_bytes_are_never_resumed_from_the_checkpoint_before_is(resuming: Place, unbroken: Outcome):
    resuming.proxy.fail("corrupt", method="GET", path="step-00000007/tensors")
    run = resuming.run.go()
    assert says(run, "refused the checkpoint of step 7, attempt 1: step-00000007/tensors")
    assert [(one.checkpoint.step, one.by_attempt) for one in resuming.record.refused] == [(7, 2)]
    assert begins_at(resuming.run) == 5
    resuming.run.outcome().assert_equals(unbroken)


def test_where_no_checkpoint_can_be_trusted_the_run_starts_over_and_says_so(
    resuming: Place, unbroken: Outcome
):
    resuming.proxy.fail("corrupt", method="GET", path="step-.*/manifest")
    run = resuming.run.go()
    assert says(run, "verifies: the run starts over at step 0")
    assert [one.checkpoint.step for one in resuming.record.refused] == [7, 5]
    assert begins_at(resuming.run) == 0
    resuming.run.outcome().assert_equals(unbroken)


@pytest.mark.parametrize(
    ("what", "damage"),
    [("tensors", "cut"), ("manifest", "emptied"), ("manifest", "gone"), ("tensors", "another's")],
)
def test_an_object_that_is_damaged_in_the_bucket_is_refused(
    resuming: Place, unbroken: Outcome, damage: str, what: str
):
    older, key = sorted(resuming.keys(f"/{what}"))
    if damage == "gone":
        resuming.delete(key)
    else:
        whole = resuming.get(key)
        resuming.put(key, {"cut": whole[:-1], "emptied": b"", "another's": resuming.get(older)}[damage])
    run = resuming.run.go()
    assert says(run, "refused the checkpoint of step 7, attempt 1: step-00000007/")
    assert [one.checkpoint.step for one in resuming.record.refused] == [7]
    assert begins_at(resuming.run) == 5
    resuming.run.outcome().assert_equals(unbroken)


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [("corrupt", 2, "run.json is "), ("truncate", 75, "Connection broken")],
)
def test_a_record_that_does_not_arrive_whole_is_not_acted_upon(  # noqa: PLR0917
    resuming: Place, interrupted: Any, unbroken: Outcome, kind: Kind, code: int, said: str
):
    """Of a record that stays wrong a person must decide: all that it says may be wrong."""
    resuming.proxy.fail(kind, method="GET", path="run.json")
    refused = resuming.run.go(env=ONE_TRY, code=code)
    assert said in refused.said.splitlines()[-1]
    assert_untouched(resuming, interrupted)
    resuming.run.go()
    assert begins_at(resuming.run) == 7
    resuming.run.outcome().assert_equals(unbroken)


def test_unsent_events_that_cannot_be_read_now_are_waited_for_and_wrong_ones_are_given_up(
    place: Place, unbroken: Outcome
):
    """A checkpoint is whole without what it carries for Metrics, which here is down all the time."""
    metrics = {
        "O41_METRICS_HOST": f"http://127.0.0.1:{free_port()}",
        "O41_METRICS_API_KEY": "a-key",
    } | settings(
        {
            "runtime.events.syvain.target:_NUM_CHECKS": 1,
            "runtime.training.attempt_run:_FLUSH_S": 0.1,
            "runtime.training.attempt_run:_CARRIED_FLUSH_S": 0.1,
        }
    )
    stop = CallPlan(call=UPDATE, at=7, signum=signal.SIGTERM)
    place.run.go("--metrics", "syvain", env=metrics, calls=stop, code=143)
    place.proxy.fail("error", method="GET", path="segments/")
    waits = place.run.go("--metrics", "syvain", env=metrics, code=75)
    assert says(waits, "answers 500")
    place.proxy.heal()
    place.proxy.fail("corrupt", method="GET", path="segments/")
    goes_on = place.run.go("--metrics", "syvain", env=metrics)
    assert says(goes_on, "unsent events are lost: segments/")
    assert begins_at(place.run) == 7
    place.proxy.heal()
    place.run.outcome().assert_equals(unbroken)


# The middle of a run


@pytest.mark.parametrize(
    ("kind", "what", "said"),
    [
        ("error", "tensors", "answers 500"),
        ("slow_down", "manifest", "answers 503"),
        ("forbid", "tensors", "refuses access"),
        ("reset", "manifest", "cannot be reached"),
        ("hang", "tensors", "Read timeout"),
        ("corrupt_request", "tensors", "answers 400"),
    ],
)
def test_a_checkpoint_that_cannot_be_stored_is_said_and_the_run_goes_on(
    place: Place, unbroken: Outcome, kind: Kind, what: str, said: str
):
    failing = place.proxy.fail(kind, method="PUT", path=f"step-00000005/{what}")
    hold(place.run, 7)
    running = place.run.start(env=IMPATIENT if kind == "hang" else ONE_TRY)
    await_said(running, "the checkpoint of step 5 is not stored")
    let_go(place.run, 7)
    assert running.wait() == 0, running.said
    assert failing.hits == 6
    assert says(running, "trying again in 0.05 s")
    assert says(running, said)
    assert place.steps[-1] == 12
    assert 5 not in place.steps
    assert place.keys("step-00000005/") == [], "its files are deleted"
    place.run.outcome().assert_equals(unbroken)


@pytest.mark.parametrize("kind", ["error", "reset"])
def test_all_of_s3_may_go_and_come_back_while_the_run_goes_on(place: Place, unbroken: Outcome, kind: Kind):
    for step in (3, 8):
        hold(place.run, step)
    running = place.run.start(env=ONE_TRY)
    await_held(place.run, 3)
    place.proxy.fail(kind)
    let_go(place.run, 3)
    await_said(running, "the checkpoint of step 5 is not stored")
    await_held(place.run, 8)
    place.proxy.heal()
    let_go(place.run, 8)
    assert running.wait() == 0, running.said
    place.run.outcome().assert_equals(unbroken)


@pytest.mark.parametrize("kind", ["slow_down", "forbid"])
def test_what_s3_does_not_store_at_the_end_is_75_and_the_resume_ends_with_the_same_bits(
    place: Place, unbroken: Outcome, kind: Kind
):
    running = lose_s3_after_step_5(place, kind)
    let_go(place.run, 7)
    assert running.wait() == 75, running.said
    assert says(running, "the checkpoint of step 12 is not stored")
    assert says(running, "the end is not in the run record")
    assert "done" not in {event["kind"] for event in place.run.events()}
    assert place.steps == [5]
    place.run.go()
    assert begins_at(place.run) == 5
    assert place.run.events()[-1]["kind"] == "done"
    place.run.outcome().assert_equals(unbroken)


def lose_s3_after_step_5(place: Place, kind: Kind, *, method: str = ".*", path: str = ".*") -> ForkedRun:
    """A run that stands in update 7, with its checkpoint of step 5 stored; from then on S3 fails."""
    hold(place.run, 7)
    running = place.run.start(env=ONE_TRY)
    await_checkpoint(place.run, 5)
    await_held(place.run, 7)
    place.proxy.fail(kind, method=method, path=path)
    return running


def test_killed_while_every_reply_is_lost_the_run_resumes_from_what_is_whole(place: Place, unbroken: Outcome):
    hold(place.run, 10)
    running = lose_s3_after_step_5(place, "lose_reply")
    let_go(place.run, 7)
    await_said(running, "the checkpoint of step 10 is not stored")
    running.signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    let_go(place.run, 10)
    place.proxy.heal()
    place.run.go()
    place.run.outcome().assert_equals(unbroken)


def test_asked_to_stop_while_s3_fails_the_exit_code_says_that_steps_are_lost(place: Place, unbroken: Outcome):
    running = lose_s3_after_step_5(place, "slow_down")
    running.signal(signal.SIGTERM)
    let_go(place.run, 7)
    assert running.wait() == 75, running.said
    assert says(running, "the checkpoint of step 8 is not stored")
    assert place.steps == [5]
    place.run.go()
    place.run.outcome().assert_equals(unbroken)


def test_a_record_that_is_deleted_under_a_run_is_said_and_rebuilt_from_what_is_there(
    place: Place, unbroken: Outcome
):
    hold(place.run, 7)
    running = place.run.start()
    await_checkpoint(place.run, 5)
    place.delete("run.json")
    let_go(place.run, 7)
    assert running.wait() == 75, running.said
    assert says(running, "run.json is gone: something else deleted it while the run lived")
    refused = place.run.go(code=2)
    assert says(refused, f"rebuild it with `python -m runtime.checkpoints.rebuild {place.run.location}`")
    rebuild_record(open_store(place.run.location, place.run.env))
    place.run.go()
    place.run.outcome().assert_equals(unbroken)


def test_a_record_that_turns_bad_under_a_run_is_said_and_never_taken_for_a_newer_attempts(
    place: Place, unbroken: Outcome
):
    running = lose_s3_after_step_5(place, "corrupt", method="GET", path="run.json")
    let_go(place.run, 7)
    assert running.wait() == 75, running.said
    assert says(running, "run.json is ")
    assert place.steps == [5]
    place.run.go()
    place.run.outcome().assert_equals(unbroken)


# A local disk


LARGE = GATED.replace("(4, 8)", "(4, 8000)").replace("1d(8)", "1d(8000)").replace("(8, 1)", "(8000, 1)")
"""Its checkpoints do not fit where its events do."""


@pytest.fixture(scope="module")
def large(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = SmallRun(forge, tmp_path_factory.mktemp("large"), source=LARGE)
    run.go()
    return run.outcome()


@pytest.fixture
def on_a_disk(forge: Forge, tmp_path: Path) -> SmallRun:
    return SmallRun(forge, tmp_path, source=LARGE, env=QUICK_RETRIES)


def fill_the_disk(run: ForkedRun) -> tuple[int, int]:
    """No file grows beyond 100 kB from now on: the kernel's own refusal. Returns what was allowed."""
    before = resource.prlimit(run.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (100_000, before[1]))
    return before


def test_a_disk_that_is_full_for_a_while_costs_a_checkpoint_and_is_said(on_a_disk: SmallRun, large: Outcome):
    for step in (3, 8):
        hold(on_a_disk, step)
    running = on_a_disk.start("--verbose")
    await_held(on_a_disk, 3)
    before = fill_the_disk(running)
    let_go(on_a_disk, 3)
    await_said(running, "the save of step 5 is over")
    assert says(running, "the checkpoint of step 5 is not stored")
    assert says(running, "free some space")
    await_held(on_a_disk, 8)
    assert list(Path(on_a_disk.location).glob("step-*")) == []
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, before)
    let_go(on_a_disk, 8)
    assert running.wait() == 0, running.said
    on_a_disk.outcome().assert_equals(large)


def test_a_disk_that_is_full_at_the_end_is_75_and_the_resume_ends_with_the_same_bits(
    on_a_disk: SmallRun, large: Outcome
):
    hold(on_a_disk, 7)
    running = on_a_disk.start()
    await_checkpoint(on_a_disk, 5)
    fill_the_disk(running)
    let_go(on_a_disk, 7)
    assert running.wait() == 75, running.said
    assert says(running, "the checkpoint of step 12 is not stored")
    assert [path.name for path in Path(on_a_disk.location).glob("step-*")] == ["step-00000005"]
    on_a_disk.go()
    assert begins_at(on_a_disk) == 5
    on_a_disk.outcome().assert_equals(large)


def test_a_directory_that_cannot_be_made_is_75_and_nothing_is_touched(on_a_disk: SmallRun):
    on_a_disk.location = "/proc/no-such-place/run"
    refused = on_a_disk.go(code=75)
    assert says(refused, "cannot write /proc/no-such-place/run")
    assert not on_a_disk.file.exists()
