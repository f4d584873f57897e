"""What dies, and who goes on: the table of docs/flows.md, done to a real server, workers and processes."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.care import shown_as_task
from flows.processes import host_name
from flows.scheduling import cancel
from flows.server import connect
from runtime.errors import Superseded
from tests.support.flow_scenarios import STEPS, Outcome, Scenarios, in_thread
from tests.support.ports import free_port
from tests.support.prefect_stack import PrefectStack, prefect_stack
from tests.support.shadows import shadows
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flows.endings import Ended

pytestmark = [pytest.mark.stack, pytest.mark.timeout(420)]

DOCS = Path(__file__).parents[3] / "docs" / "flows.md"
AT_ONCE = 5

SCENARIOS = {
    "the worker gets SIGTERM": Scenarios.sigterm_worker,
    "the run is cancelled after its worker was killed": Scenarios.cancel_after_worker_died,
    "the worker is killed": Scenarios.kill_worker,
    "the run is cancelled and ignores SIGTERM": Scenarios.cancelled_and_deaf,
    "the run is cancelled": Scenarios.cancelled,
    "the run is cancelled and resumed": Scenarios.cancelled_and_resumed,
    "the flow process is killed": Scenarios.kill_flow,
    "the flow process gets SIGTERM": Scenarios.sigterm_flow,
    "the flow process gets SIGTERM right after done": Scenarios.sigterm_flow_after_done,
    "the experiment file is missing for a while": Scenarios.file_missing_for_a_while,
    "a newer attempt is started by hand": Scenarios.newer_by_hand,
    "nothing": Scenarios.nothing,
    "the trainer is killed": Scenarios.kill_trainer,
    "the trainer gets SIGTERM": Scenarios.sigterm_trainer,
    "a finished run is scheduled again": Scenarios.scheduled_again,
    "the slug is scheduled twice at once": Scenarios.scheduled_twice_at_once,
    "the experiment fails the same way twice": Scenarios.fails_twice,
    "the experiment file has a mistake": Scenarios.mistaken,
}
BESIDES: dict[str, Callable[[Scenarios], Any]] = {
    "a schedule": Scenarios.scheduled_for_a_time,
    "another host": Scenarios.on_another_hosts_disk,
    "SIGTERM between two attempts": Scenarios.sigterm_flow_while_it_resumes,
}
LAST = "trainer, flow process and worker are killed and the server restarts"
NEAR = "the server is killed and restarts"
TABLE = {row[0]: row[1:] for row in rows_of(DOCS, "what happens")}


@pytest.fixture(scope="module")
def still_environment() -> Iterator[None]:
    """Pytest sets a variable at every test, and Prefect reads all of them in the scenarios' threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("_pytest.runner._update_current_test_var", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def stack(tmp_path_factory) -> Iterator[PrefectStack]:
    # Flow processes, trainers and rescue start where a PYTHONPATH shadows our packages, too.
    with prefect_stack(PYTHONPATH=shadows(tmp_path_factory.mktemp("lib"))) as stack:
        stack.deploy()
        stack.start_worker("w1")
        stack.start_rescue()
        yield stack


@pytest.fixture(scope="module")
def outcomes(still_environment: None, stack: PrefectStack) -> Iterator[dict[str, Future[Any]]]:
    """All of them at once; the one that takes the server away comes when the others are done."""
    scenarios = Scenarios(stack)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {
            name: pool.submit(in_thread, stack, scenario.__get__(scenarios))
            for name, scenario in {**SCENARIOS, **BESIDES}.items()
        }

        def last() -> tuple[Outcome, Outcome]:
            for future in futures.values():
                future.exception()
            return in_thread(stack, scenarios.kill_all_and_restart_server)

        with ThreadPoolExecutor(3) as alone:
            both = alone.submit(last)
            yield {
                **futures,
                LAST: alone.submit(lambda: both.result()[0]),
                NEAR: alone.submit(lambda: both.result()[1]),
            }
            stack.close()  # what still waits after a failure need not wait any longer
            pool.shutdown(wait=False, cancel_futures=True)


def test_every_line_of_the_table_is_a_scenario():
    assert set(TABLE) == {*SCENARIOS, LAST, NEAR}


@pytest.mark.parametrize("name", [*SCENARIOS, LAST, NEAR])
def test_what_happens_ends_as_the_table_says(outcomes, name):
    outcome = outcomes[name].result()
    who, attempts, state = TABLE[name]
    told = f"{outcome.message} {outcome.facts}"
    assert outcome.state == state, told
    assert outcome.attempts == int(attempts), told
    assert outcome.rescued is ("rescue" in who), told
    assert outcome.left_processes == [], told


@pytest.mark.parametrize("name", [name for name, (_, _, state) in TABLE.items() if state == "Completed"])
def test_every_completed_run_has_the_weights_of_one_to_which_nothing_happened(outcomes, name):
    expected, weights = outcomes["nothing"].result().final_weights, outcomes[name].result().final_weights
    assert expected is not None
    assert weights is not None
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


def test_rescue_acts_within_90_seconds_of_the_death_also_when_the_server_was_restarted(outcomes):
    assert outcomes[LAST].result().facts["rescued_after_s"] < 90


def test_a_deaf_trainer_and_its_grandchild_are_gone_within_prefects_30_seconds(outcomes):
    facts = outcomes["the run is cancelled and ignores SIGTERM"].result().facts
    assert len(facts["grandchildren"]) == 1
    assert facts["grandchildren_left"] == []
    assert facts["took_s"] < 30


def test_a_cancelled_run_is_resumed_where_it_was_interrupted(outcomes):
    facts = outcomes["the run is cancelled and resumed"].result().facts
    assert 0 < facts["kept_step"] == facts["resumed_step"] < STEPS


def test_a_finished_run_that_is_scheduled_again_has_its_new_parameters_and_trains_nothing(outcomes):
    facts = outcomes["a finished run is scheduled again"].result().facts
    assert facts == {"refused_while_live": True, "same_checkpoints": True, "failures": 1}


def test_a_run_that_was_done_when_its_flow_process_ended_is_completed_without_another_attempt(outcomes):
    facts = outcomes["the flow process gets SIGTERM right after done"].result().facts
    assert facts == {"recorded_attempts": 1}


def test_a_flow_process_that_is_ended_between_two_attempts_leaves_the_run_to_rescue_whole(outcomes):
    outcome = outcomes["SIGTERM between two attempts"].result()
    assert (outcome.state, outcome.rescued, outcome.left_processes) == ("Completed", True, [])
    assert outcome.attempts in {2, 3}  # the second may just have begun
    expected = outcomes["nothing"].result().final_weights
    assert all(torch.equal(outcome.final_weights[key], expected[key]) for key in expected)


def test_the_task_run_of_a_killed_flow_process_does_not_stay_running(outcomes):
    facts = outcomes["the flow process is killed"].result().facts
    assert facts["task_runs"] == {"attempt-1": "CRASHED", "attempt-2": "COMPLETED"}


def test_what_an_attempt_raises_is_raised_and_not_only_shown(stack):
    """A run that was taken over at an attempt's start had Failed: list index out of range."""

    def taken_over() -> Ended:
        raise Superseded("another flow process looks after it now.")

    @flow(name="one-attempt", persist_result=False)
    def one_attempt() -> None:
        shown_as_task(1, taken_over)

    with temporary_settings({PREFECT_API_URL: stack.api}), pytest.raises(Superseded, match="looks after it"):
        one_attempt()


def test_a_crashed_run_can_be_cancelled_before_rescue_schedules_it_again(stack):
    with temporary_settings({PREFECT_API_URL: stack.api}), connect() as server:
        deployment = server.deployment_id("train/train")
        given = {"experiment": "m", "slug": "crashed"}
        run, _ = server.create_run(deployment, slug="crashed", parameters=given, key="crashed")
        server.set_state(run.id, {"type": "CRASHED"}, message="as a test has it", force=True)
        assert cancel("crashed").run.state == "Cancelled"


def test_prefect_shows_progress_the_loss_and_what_became_of_each_attempt(outcomes):
    shown = outcomes["nothing"].result().facts["artifacts"]
    assert set(shown) == {"nothing", "nothing-progress", "nothing-loss"}
    assert shown["nothing-progress"] == 100
    assert shown["nothing-loss"].startswith("data:image/svg+xml")
    assert f"step {STEPS} of {STEPS}" in shown["nothing"]
    assert "| attempt | host |" in shown["nothing"]
    assert "| checkpoint | written |" in shown["nothing"]


def test_of_four_that_schedule_a_slug_at_once_one_gets_it_and_the_others_are_refused_by_name(outcomes):
    facts = outcomes["the slug is scheduled twice at once"].result().facts
    refused = [answer for answer in facts["answers"] if "twice is live" in answer]
    assert len(refused) == 3
    assert facts["flow_runs"] == 1


def test_the_older_of_two_attempts_leaves_and_rescue_does_not_take_the_run_from_the_newer(outcomes):
    facts = outcomes["a newer attempt is started by hand"].result().facts
    assert facts["first_code"] == 76
    assert facts["by_hand_exit"] == 0
    assert facts["recorded_attempts"] == 2


def test_a_scheduled_time_has_a_slug_and_running_it_again_is_a_resume(outcomes):
    outcome = outcomes["a schedule"].result()
    slug = "nightly-20250101T030000Z"
    assert outcome.facts == {"name": slug, "tags": ["host:" + host_name(), f"slug:{slug}"], "kept": slug}
    assert (outcome.state, outcome.attempts) == ("Completed", 2)


def test_a_run_on_another_hosts_disk_is_handed_back_and_says_so(outcomes):
    facts = outcomes["another host"].result()
    assert facts["message"].endswith("is on another-host: waiting for a worker there")
    assert facts["started"] is False
    assert facts["then"] == "Cancelled"


def test_rescue_waits_for_a_server_that_is_away_and_ends_when_it_is_told_to(tmp_path):
    stack = PrefectStack(tmp_path, free_port())
    rescue = stack.start_rescue("--poll-s", "0.1")
    wait_until(lambda: "does not answer" in stack.log("rescue"), within_s=60)
    rescue.terminate()
    assert rescue.wait(20) == 0
    assert stack.log("rescue").count("does not answer") == 1


def test_a_failure_that_repeats_itself_is_named_on_the_run(outcomes):
    message = outcomes["the experiment fails the same way twice"].result().message
    assert message == "step 7 failed the same way twice: ValueError: a batch that cannot be"


def test_a_mistake_is_named_on_the_run(outcomes):
    message = outcomes["the experiment file has a mistake"].result().message
    assert message.startswith("rejected: ")
    assert "no_such_knob" in message


def test_waiting_for_the_surroundings_is_said_on_the_run(outcomes):
    facts = outcomes["the experiment file is missing for a while"].result().facts
    assert "is not on this host" in facts["said"]
    assert facts["tries"] >= 2
