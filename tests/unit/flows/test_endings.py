"""How an attempt's ending decides what follows: exactly the table of docs/flows.md."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from flows.endings import (
    DELIVERIES,
    Action,
    Decision,
    Ended,
    Ending,
    Policy,
    backoff_s,
    classify,
    decide,
    describe,
)
from flows.parameters import TrainParameters
from tests.support.tables import rows_of

POLICY = Policy(interruptions=3, failures=2, no_progress=4)
DOCS = Path(__file__).parents[3] / "docs" / "flows.md"


def ended(
    code: int | None, *, step: int | None = None, error: str | None = None, advanced: bool = False
) -> Ended:
    return Ended(ending=classify(code), code=code, step=step, error=error, advanced=advanced)


KILLED, MOVED = ended(-9), ended(-9, advanced=True)
AWAY = ended(75)


def failed(step: int, error: str = "ValueError: bad", *, advanced: bool = False) -> Ended:
    return ended(1, step=step, error=error, advanced=advanced)


def actions(history: list[Ended], policy: Policy = POLICY) -> list[Action]:
    """What is decided after each ending of `history` in turn."""
    return [decide(history[:length], policy).action for length in range(1, len(history) + 1)]


def table() -> list[tuple[int | None, str, Action, str]]:
    found = []
    for statuses, ending, follows, against in rows_of(DOCS, "status"):
        action = Action(re.split(r"[ ,:]", follows)[0])
        codes = [None if status == "lost" else int(status) for status in re.findall(r"`([^`]+)`", statuses)]
        found += [(code, ending, action, against.strip("`")) for code in codes]
    return found


@pytest.mark.parametrize(("code", "ending", "action", "against"), table(), ids=str)
def test_an_ending_is_followed_by_what_the_table_says(code, ending, action, against):
    del against
    assert classify(code).value in ending.split(" or ")
    assert decide([ended(code)], POLICY).action is action


@pytest.mark.parametrize(("code", "ending", "action", "against"), table(), ids=str)
def test_an_ending_counts_against_the_budget_that_the_table_says(code, ending, action, against):
    del ending
    none = {"interruptions": 0, "failures": 0}
    plenty = {"interruptions": 9, "failures": 9}
    for budget in none:
        policy = Policy(**{**plenty, budget: 0}, no_progress=9)
        follows = decide([ended(code)], policy).action
        assert follows is (Action.FAIL if budget == against else action)


def test_every_ending_and_every_action_stands_in_the_table():
    kinds = {kind for _, ending, _, _ in table() for kind in ending.split(" or ")}
    assert kinds == set(Ending)
    assert {action for _, _, action, _ in table()} == set(Action)


def test_every_status_is_one_kind_of_ending():
    others = {0: Ending.DONE, 2: Ending.REJECTED, 75: Ending.UNAVAILABLE, 76: Ending.SUPERSEDED}
    for code in range(-64, 256):
        signalled = code < 0 or 128 < code <= 193
        assert classify(code) is (Ending.INTERRUPTED if signalled else others.get(code, Ending.FAILED))


def test_kills_without_progress_are_resumed_as_often_as_the_budget_says():
    assert actions([KILLED] * 4) == [Action.RESUME] * 3 + [Action.FAIL]


def test_the_budget_for_interruptions_refills_when_steps_advanced():
    history = [KILLED, KILLED, KILLED, MOVED, KILLED, KILLED, MOVED, KILLED]
    assert set(actions(history)) == {Action.RESUME}


def test_one_that_advanced_is_an_interruption_too():
    assert actions([MOVED, KILLED, KILLED, KILLED])[-1] is Action.FAIL


def test_a_run_that_is_killed_for_ever_but_advances_goes_on_for_ever():
    assert set(actions([MOVED] * 50)) == {Action.RESUME}


def test_failures_have_a_budget_of_their_own_that_progress_does_not_refill():
    history = [failed(1, advanced=True), failed(2, advanced=True), failed(3, advanced=True)]
    assert actions(history) == [Action.RESUME, Action.RESUME, Action.FAIL]


def test_kills_do_not_use_up_the_budget_for_failures_nor_the_reverse():
    history = [
        MOVED,
        failed(5, "a", advanced=True),
        MOVED,
        MOVED,
        MOVED,
        failed(9, "b", advanced=True),
        MOVED,
    ]
    assert set(actions(history)) == {Action.RESUME}


def test_the_same_failure_at_the_same_step_is_not_tried_a_third_time():
    decision = decide([failed(7), failed(7)], Policy(interruptions=3, failures=9, no_progress=9))
    assert decision.action is Action.FAIL
    assert decision.reason == "step 7 failed the same way twice: ValueError: bad"


def test_the_same_failure_counts_as_the_same_with_kills_in_between():
    assert actions([failed(7), MOVED, failed(7)])[-1] is Action.FAIL


@pytest.mark.parametrize("second", [failed(8), failed(7, "TypeError: other")])
def test_another_step_or_another_error_is_another_failure(second):
    assert actions([failed(7), second])[-1] is Action.RESUME


def test_failures_before_any_step_are_told_apart_by_nothing_and_use_the_budget():
    unknown = ended(1, error="Killed by the driver")
    assert actions([unknown] * 3) == [Action.RESUME, Action.RESUME, Action.FAIL]


def test_no_progress_over_k_resumes_fails_and_says_so():
    policy = Policy(interruptions=99, failures=99, no_progress=3)
    decision = decide([MOVED, KILLED, KILLED, KILLED], policy)
    assert decision.action is Action.FAIL
    assert decision.reason.startswith("no progress over 3 resumes: killed by SIGKILL.")
    assert decide([KILLED, KILLED, KILLED], policy).action is Action.RESUME


@pytest.mark.parametrize(
    ("given", "ending", "again"),
    [
        ({}, KILLED, 10),
        ({"interruptions": 30}, KILLED, 30),
        ({"interruptions": 0}, KILLED, 0),
        ({"failures": 12}, ended(1), 12),
        ({"interruptions": 0, "failures": 0}, ended(1), 0),
        ({"no_progress": 4}, KILLED, 4),
    ],
)
def test_a_run_is_tried_again_as_often_as_it_was_asked_for(given, ending, again):
    """No budget was of use beyond five: resumes without progress were never allowed more often."""
    policy = Policy.of(TrainParameters(experiment="m", **given))
    assert actions([ending] * (again + 1), policy) == [Action.RESUME] * again + [Action.FAIL]


def test_kills_and_failures_together_are_resumes_without_progress():
    policy = Policy(interruptions=99, failures=99, no_progress=3)
    assert actions([KILLED, failed(1, "a"), KILLED, failed(2, "b")], policy)[-1] is Action.FAIL


def test_waiting_is_neither_an_interruption_nor_a_failure_nor_a_resume_without_progress():
    assert actions([AWAY] * 100) == [Action.WAIT] * 100
    history = [KILLED, *[AWAY] * 20, KILLED, *[AWAY] * 20, KILLED]
    assert set(actions(history)) == {Action.RESUME, Action.WAIT}
    assert actions([*history, KILLED])[-1] is Action.FAIL


def test_a_wait_that_left_a_newer_checkpoint_refills_the_budget():
    history = [KILLED, KILLED, KILLED, ended(75, advanced=True), KILLED]
    assert actions(history)[-1] is Action.RESUME


@pytest.mark.parametrize("last", [ended(0), ended(2), AWAY, ended(76)])
def test_what_the_budgets_have_no_say_in_is_decided_by_the_last_ending_alone(last):
    histories = itertools.product([KILLED, MOVED, failed(1), AWAY], repeat=3)
    assert {decide([*history, last], POLICY).action for history in histories} == {
        decide([last], POLICY).action
    }


def test_no_history_of_kills_and_failures_lasts_for_ever_without_progress():
    for history in itertools.product([KILLED, failed(1), failed(2, "other"), ended(None)], repeat=6):
        assert Action.FAIL in actions(list(history))


def test_the_wait_doubles_up_to_five_minutes():
    assert [backoff_s(tries) for tries in (1, 2, 3, 4, 5, 6, 7, 8, 1000)] == [
        5,
        10,
        20,
        40,
        80,
        160,
        300,
        300,
        300,
    ]


def test_an_ending_is_described_in_words():
    assert describe(ended(0)) == "done"
    assert describe(ended(-9, error="out of memory")) == "killed by SIGKILL (out of memory)"
    assert describe(ended(143)) == "interrupted by SIGTERM"
    assert describe(failed(3)) == "exit code 1 at step 3: ValueError: bad"
    assert describe(ended(None)) == "lost with its flow process"
    assert describe(ended(-63)) == "killed by signal 63"


UNSENT = Ended(ending=Ending.DONE, code=0, unsent=3)


@pytest.mark.parametrize("then", [UNSENT, KILLED, ended(1, error="x"), ended(2), AWAY], ids=describe)
def test_a_run_that_is_done_stays_done_whatever_becomes_of_its_deliveries(then):
    history = [UNSENT, *[then] * DELIVERIES]
    assert actions(history) == [*[Action.WAIT] * DELIVERIES, Action.COMPLETE]
    assert decide(history, POLICY).reason.startswith("done, but Metrics has not taken 3 events")
    assert decide([*history, ended(76)], POLICY).action is Action.ABORT


def test_deliveries_end_when_everything_is_delivered():
    assert decide([UNSENT, KILLED, ended(0)], POLICY) == Decision(Action.COMPLETE, "done")


def test_a_night_of_waiting_for_the_location_counts_as_often_as_it_was_tried():
    waited = Ended(ending=Ending.UNAVAILABLE, code=75, tries=DELIVERIES)
    assert decide([UNSENT, waited], POLICY).action is Action.COMPLETE


def test_an_attempt_that_was_superseded_counts_against_nothing():
    assert actions([KILLED, *[ended(76), KILLED] * 2])[-1] is Action.RESUME
    policy = Policy(interruptions=9, failures=9, no_progress=3)
    assert decide([KILLED, *[ended(76)] * 3, KILLED], policy).action is Action.RESUME
