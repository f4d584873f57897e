"""Metrics down, hanging, or dead with the machine: what came before a checkpoint still arrives, once."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import gates
from tests.support.arrivals import Lives, held, look
from tests.support.forge import QUICK_RETRIES, CallPlan, settings
from tests.support.gates import GATED, await_checkpoint, await_held, hold, let_go
from tests.support.metrics_server import MetricsServer
from tests.support.ports import free_port
from tests.support.runs import Outcome, SmallRun, notes
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.support.forge import Forge, ForkedRun
    from tests.support.s3_proxy import S3Proxy
    from tests.support.seaweed import Bucket

    Begin = Callable[..., SmallRun]

UPDATE = "runtime.training.update:Updater.__call__"
PUBLISHED = "runtime.checkpoints.saver:Saver._announce"
"""Called when the record names a checkpoint: what a plan kills here dies right after it."""

IMPATIENT = settings(
    {"runtime.events.syvain.target:_NUM_CHECKS": 1, "runtime.training.attempt_run:_FLUSH_S": 0.5}
)
"""With Metrics down a run looks once at its start, not thrice, and waits half a second at its end, not 30."""

ONE_TIMEOUT_S = 30.0
"""How long the client waits for one answer: who waited for Metrics at all waited longer than that."""


@pytest.fixture(scope="module")
def the_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetricsServer]:
    server = MetricsServer(tmp_path_factory.mktemp("metrics") / "data")
    server.start()
    yield server
    if server.process is not None:
        server.stop()


@pytest.fixture
def server(the_server: MetricsServer) -> MetricsServer:
    """The real server, up, whatever the test before has done to it."""
    if the_server.process is None:
        the_server.start()
    return the_server


@pytest.fixture(scope="module")
def unbroken(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = SmallRun(forge, tmp_path_factory.mktemp("unbroken"))
    run.go()
    return run.outcome()


@pytest.fixture
def begin(forge: Forge, tmp_path: Path) -> Begin:
    """Make a run that publishes to Metrics, under a slug of this test."""

    def run(folder: str = "here", **options: Any) -> SmallRun:
        return SmallRun(
            forge,
            tmp_path / folder,
            source=GATED,
            flags=("--metrics", "syvain"),
            slug=tmp_path.name,
            **options,
        )

    return run


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where a run keeps its checkpoints."""
    if request.param == "local":
        return {"location": str(tmp_path / "location")}
    bucket: Bucket = request.getfixturevalue("bucket")
    return {"location": f"{bucket.url}/runs/a", "env": bucket.env}


def up(server: MetricsServer) -> dict[str, str]:
    return {"O41_METRICS_HOST": server.url, "O41_METRICS_API_KEY": server.key}


def down(server: MetricsServer) -> dict[str, str]:
    return {**up(server), **IMPATIENT, "O41_METRICS_HOST": f"http://127.0.0.1:{free_port()}"}


def killed_after_its_checkpoint(run: SmallRun, env: Mapping[str, str], *, held_at: int) -> None:
    """An attempt that dies when its first checkpoint counts, in update `held_at` at the latest."""
    hold(run, held_at)
    run.go(calls=CallPlan(call=PUBLISHED), env=env, code=-signal.SIGKILL)
    let_go(run, held_at)


def await_delivered(server: MetricsServer, run: SmallRun, step: int) -> None:
    def delivered() -> bool:
        found = look(server, run.slug)
        return found is not None and any(told.step == step for told in found.told)

    wait_until(delivered, within_s=40, what=f"Metrics has nothing of step {step}")


# Metrics is down


def test_down_until_the_machine_dies_after_a_checkpoint_all_before_it_arrives_with_the_resume(
    begin: Begin, place: dict[str, Any], server: MetricsServer, unbroken: Outcome
):
    run, lives = begin(**place), Lives()
    killed_after_its_checkpoint(run, down(server), held_at=7)
    lives.note(run)
    run.go(env=up(server))
    lives.note(run)
    found = held(server, run.slug)
    lives.assert_arrived(found, unbroken)
    run.outcome().assert_equals(unbroken)
    first, second = lives.sessions
    assert {told.session for told in found.told} == {first, second}
    assert found.lifecycle == [(second, "start"), (second, "done")], "the resume's, not the dead attempt's"
    assert found.status == "done"


def test_down_through_two_deaths_and_a_failure_each_attempts_events_arrive_under_its_own_session(
    begin: Begin, place: dict[str, Any], server: MetricsServer, unbroken: Outcome
):
    run, lives = begin(**place), Lives()
    killed_after_its_checkpoint(run, down(server), held_at=7)
    lives.note(run)
    run.go(env=down(server), calls=CallPlan(call=UPDATE, at=2), code=-signal.SIGKILL)
    lives.note(run)
    assert lives.attempts[-1].checkpoint is None, "it died before it published anything"
    hold(run, 10)
    gates.fail_at(run, 10)
    failing = run.start(env=down(server))
    await_checkpoint(run, 10)
    let_go(run, 10)
    assert failing.wait() == 1
    lives.note(run)
    assert notes(lives.attempts[-1].lines)[-1] == "failed: RuntimeError: asked for"
    (run.folder / "fail-10").unlink()
    run.go(env=up(server))
    lives.note(run)
    found = held(server, run.slug)
    lives.assert_arrived(found, unbroken)
    run.outcome().assert_equals(unbroken)
    first, _, third, fourth = lives.sessions
    assert {told.session for told in found.told} == {first, third, fourth}
    assert found.lifecycle == [(fourth, "start"), (fourth, "done")], "the unsent error is not the run's end"
    assert found.status == "done"


def test_down_for_a_whole_run_that_ends_all_up_to_the_last_checkpoint_arrives_when_it_is_run_again(
    begin: Begin, place: dict[str, Any], server: MetricsServer, unbroken: Outcome
):
    run, lives = begin(**place), Lives()
    ended = run.go(env=down(server))
    lives.note(run)
    assert "Metrics takes no events now" in ended.said
    assert "events were not sent to Metrics; a resume sends those up to its checkpoint" in ended.said
    assert json.loads(ended.out.read_bytes())["unsent"] > 0
    again = run.go(env=up(server))
    assert json.loads(again.out.read_bytes())["unsent"] == 0
    lives.note(run)
    found = held(server, run.slug)
    lives.assert_arrived(found, unbroken)
    _, second = lives.sessions
    assert found.lifecycle == [(second, "start"), (second, "done")]


def test_down_while_a_save_fails_too_the_next_checkpoint_carries_what_that_one_would_have(
    begin: Begin, bucket: Bucket, s3_proxy: S3Proxy, server: MetricsServer, unbroken: Outcome
):
    run, lives = begin(location=bucket.url, env=bucket.server.env(s3_proxy.endpoint)), Lives()
    failing = s3_proxy.fail("error", method="PUT", path="step-00000005/manifest")
    hold(run, 7)
    hold(run, 10)
    env = {**down(server), **QUICK_RETRIES}
    dying = run.start("--verbose", env=env, calls=CallPlan(call=PUBLISHED))
    # Until then the saver takes no other: the checkpoint due at 10 would be put off, past the gate there.
    wait_until(lambda: "the save of step 5 is over" in dying.said, within_s=40)
    assert "the checkpoint of step 5 is not stored" in dying.said
    assert "step-00000005" not in " ".join(bucket.keys()), "it is cleared up"
    let_go(run, 7)
    assert dying.wait() == -signal.SIGKILL, dying.said
    assert failing.hits >= 6
    lives.note(run)
    assert lives.attempts[0].checkpoint == 10
    let_go(run, 10)
    run.go(env=up(server))
    lives.note(run)
    lives.assert_arrived(held(server, run.slug), unbroken)
    run.outcome().assert_equals(unbroken)


def test_down_in_the_middle_everything_arrives_once_it_is_up_again(
    begin: Begin, server: MetricsServer, unbroken: Outcome
):
    run, lives = begin(), Lives()
    for step in (3, 10):
        hold(run, step)
    running = run.start(env=up(server))
    await_delivered(server, run, 2)
    server.kill()
    let_go(run, 3)
    await_held(run, 10)
    wait_until(lambda: "Metrics takes no events now" in running.said, within_s=30)
    server.start()
    let_go(run, 10)
    assert running.wait() == 0, running.said
    lives.note(run)
    found = held(server, run.slug)
    lives.assert_arrived(found, unbroken)
    assert found.told == lives.written()
    (only,) = lives.sessions
    assert found.lifecycle == [(only, "start"), (only, "done")]
    assert "Metrics takes events again" in running.said


def test_metrics_and_then_the_machine_die_and_both_come_back_elsewhere(
    begin: Begin, bucket: Bucket, server: MetricsServer, unbroken: Outcome
):
    """The resume has none of the dead machine's files, and the server is another process on another port."""
    location = f"{bucket.url}/runs/a"
    run, lives = begin(location=location, env=bucket.env), Lives()
    for step in (3, 7, 10):
        hold(run, step)
    dying = run.start(env=up(server))
    await_delivered(server, run, 2)
    before = held(server, run.slug)
    let_go(run, 3)
    await_checkpoint(run, 5)
    server.kill()
    let_go(run, 7)
    await_checkpoint(run, 10)
    dying.signal(signal.SIGKILL)
    assert dying.wait() == -signal.SIGKILL
    lives.note(run)
    run.folder.rename(run.folder.with_name("gone"))
    elsewhere = begin("elsewhere", location=location, env=bucket.env)
    other = MetricsServer(server.data)
    assert other.port != server.port
    other.start()
    try:
        elsewhere.go(env=up(other))
        lives.note(elsewhere)
        found = held(other, run.slug)
    finally:
        other.stop()
    lives.assert_arrived(found, unbroken)
    assert found.experiment_id == before.experiment_id
    assert before.told - found.told == before.told - before.told, "nothing that was stored has changed"
    first, second = lives.sessions
    assert found.lifecycle == [(first, "start"), (second, "start"), (second, "done")]
    assert dict(elsewhere.outcome().tensors).keys() == unbroken.tensors.keys()


# Metrics hangs: it takes connections and requests, and never answers


@pytest.fixture
def stopped(server: MetricsServer) -> Iterator[Callable[[], None]]:
    """Stop the server where it stands; it goes on, with every request it has by then, after the test."""
    assert server.process is not None
    yield lambda: server.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr] # seen above
    server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("since", ["the start", "the middle"])
def test_a_server_that_hangs_holds_training_up_by_nothing_and_loses_nothing(
    begin: Begin, server: MetricsServer, stopped: Callable[[], None], unbroken: Outcome, since: str
):
    run, lives = begin(), Lives()
    if since == "the start":
        stopped()
        began = time.monotonic()
        hanging = run.start(env=up(server))
    else:
        hold(run, 3)
        hanging = run.start(env=up(server))
        await_delivered(server, run, 2)
        stopped()
        began = time.monotonic()
        let_go(run, 3)
    await_end(run, hanging)
    assert time.monotonic() - began < ONE_TIMEOUT_S
    hanging.signal(signal.SIGKILL)
    assert hanging.wait() == -signal.SIGKILL
    lives.note(run)
    # What the dead process asked for is still in the server's sockets, and is done now.
    server.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr] # it is stopped
    run.go(env=up(server))
    lives.note(run)
    found = held(server, run.slug)
    lives.assert_arrived(found, unbroken)
    run.outcome().assert_equals(unbroken)
    assert found.status == "done"


def await_end(run: SmallRun, process: ForkedRun) -> None:
    """Wait until the record says done: all is trained and stored; only Metrics is still waited for."""
    wait_until(
        lambda: (record := gates.record(run)) and record.ended, within_s=40, what=process.err.read_text
    )


def test_a_signal_while_it_hangs_ends_the_run_within_its_notice_and_that_arrives_too(
    begin: Begin, server: MetricsServer, stopped: Callable[[], None], unbroken: Outcome
):
    run, lives = begin(), Lives()
    hold(run, 7)
    hanging = run.start("--notice", "8", env=up(server))
    await_delivered(server, run, 5)
    stopped()
    began = time.monotonic()
    hanging.signal(signal.SIGTERM)
    let_go(run, 7)
    assert hanging.wait() == 128 + signal.SIGTERM, hanging.said
    assert time.monotonic() - began < 18  # of 20 that it has unless told, and 30 that the client waits
    lives.note(run)
    server.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr] # it is stopped
    run.go(env=up(server))
    lives.note(run)
    found = held(server, run.slug)
    lives.assert_arrived(found, unbroken)
    run.outcome().assert_equals(unbroken)
    assert sum(told.what == "interrupted by SIGTERM at step 8" for told in found.told) == 1
