"""Looking after a run: what follows each ending, who may, and what is left when a flow process dies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from flows.endings import Action, Decision, Ended, Ending, Policy, classify
from flows.keeper import Keeper
from flows.ledger import LedgerFile, Owner
from flows.processes import ProcessId, host_name
from flows.standing import Files, Recorded
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.record import (
    AttemptEntry,
    CheckpointEntry,
    EndEntry,
    RunRecord,
    read_record,
    write_record,
)
from runtime.errors import Unavailable

TRAINER = ProcessId(host=host_name(), boot="b", pid=7, start_ticks=1)


class Died(BaseException):
    """The flow process is killed here: nothing of it goes on."""


@dataclass
class World:
    """A location, and a trainer that ends as it is told: (status, steps kept, error of a failure)."""

    script: list[tuple[int, int, str | None]]
    store: MemoryStore = field(default_factory=MemoryStore)
    said: list[str] = field(default_factory=list)
    stood: list[str | None] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    dies_at: int = -1
    living: set[int] = field(default_factory=set)
    unsent: list[int] = field(default_factory=list)
    policy: Policy = field(default_factory=lambda: Policy(interruptions=3, failures=2, no_progress=4))

    def keeper(self, token: str = "t1", pid: int = 100, *, asked: frozenset[str] = frozenset("s")) -> Keeper:
        return Keeper(
            slug="a",
            store=self.store,
            standing=Recorded(self.store),
            owner=Owner(
                token=token, process=replace(TRAINER, pid=pid), flow_run_id="f", state_id="s", since_ms=0
            ),
            asked=asked,
            policy=self.policy,
            notice_s=0.1,
            train=self.train,
            say=self.said.append,
            show=lambda _ledger: None,
            stand=self.stood.append,
            sleep=self.slept.append,
            alive=lambda process: process.pid in self.living,
        )

    def train(self, number, started) -> Ended:
        self.ran.append(number)
        code, step, error = self.script.pop(0)
        if code not in (2, 75):
            self.record(number, step, {0: "done", 1: "failed"}.get(code))
        started(TRAINER)
        if len(self.ran) - 1 == self.dies_at:
            raise Died
        unsent = self.unsent.pop(0) if self.unsent else 0
        failed_step = step if error else None
        return Ended(ending=classify(code), code=code, step=failed_step, error=error, unsent=unsent)

    def record(self, number: int, step: int, status: str | None) -> None:
        found = read_record(self.store)
        checkpoint = CheckpointEntry(
            step=step, attempt=number, published_ms=0, manifest="m", manifest_blake3="0"
        )
        record = RunRecord(
            slug="a",
            attempt=AttemptEntry(number=number, session="0" * 32, host="h", pid=1, started_ms=0),
            checkpoints=(checkpoint,) if step else (),
            ended=EndEntry(attempt=number, status=status, step=step, ended_ms=5) if status else None,
        )
        write_record(self.store, record, etag=found[1] if found else None)

    def ledger(self):
        return LedgerFile(self.store, "a").read()


def test_a_run_that_is_done_is_complete_and_the_ledger_says_so():
    world = World([(0, 8, None)])
    assert world.keeper().keep().action is Action.COMPLETE
    assert world.ledger().closed.action is Action.COMPLETE
    assert (world.ledger().attempts[0].start_step, world.ledger().attempts[0].end_step) == (0, 8)


def test_a_killed_attempt_is_followed_by_one_from_its_checkpoint():
    world = World([(-9, 4, None), (143, 6, None), (0, 8, None)])
    assert world.keeper().keep().action is Action.COMPLETE
    assert world.ran == [1, 2, 3]
    assert [(e.start_step, e.end_step) for e in world.ledger().attempts] == [(0, 4), (4, 6), (6, 8)]
    assert world.said == ["killed by SIGKILL; resuming", "interrupted by SIGTERM; resuming"]
    assert world.slept == []


def test_waiting_backs_off_and_begins_again_small_after_an_attempt_that_ran():
    away = (75, 0, "no bucket")
    world = World([away, away, away, (-9, 4, None), away, (0, 8, None)])
    assert world.keeper().keep().action is Action.COMPLETE
    assert world.slept == [5, 10, 20, 5]
    assert world.said[0] == "waiting: no bucket; next try in 5 s"
    assert world.stood[:2] == [world.said[0], None]  # it waits, and goes on
    assert world.stood[1::2] == [None] * 4


def test_a_superseded_attempt_ends_the_care_without_a_last_word():
    world = World([(76, 0, None)])
    assert world.keeper().keep().action is Action.ABORT
    assert world.ledger().closed is None


def test_the_same_failure_twice_is_the_last_word():
    world = World([(1, 5, "ValueError: x"), (1, 5, "ValueError: x")])
    decision = world.keeper().keep()
    assert decision.action is Action.FAIL
    assert (
        world.ledger().closed.reason == decision.reason == "step 5 failed the same way twice: ValueError: x"
    )


def test_a_run_that_always_crashes_does_not_loop_for_ever():
    world = World([(-11, 0, None)] * 100)
    assert world.keeper().keep().action is Action.FAIL
    assert len(world.ran) == 4


def test_budgets_survive_the_flow_process():
    world = World([(-9, 0, None)] * 100, dies_at=2)
    with pytest.raises(Died):
        world.keeper().keep()
    assert world.keeper("t2", pid=101).keep().action is Action.FAIL
    assert len(world.ran) == 4


def test_an_attempt_whose_flow_process_died_is_lost_and_resumed():
    world = World([(-9, 4, None), (0, 8, None)], dies_at=0)
    with pytest.raises(Died):
        world.keeper().keep()
    assert world.keeper("t2", pid=101).keep().action is Action.COMPLETE
    first, second = world.ledger().attempts
    assert (first.code, first.end_step, second.start_step) == (None, 4, 4)
    assert world.said[-1] == "lost with its flow process; resuming"


def test_a_run_that_was_done_when_its_flow_process_died_is_complete_without_another_attempt():
    world = World([(0, 8, None)], dies_at=0)
    with pytest.raises(Died):
        world.keeper().keep()
    assert world.keeper("t2", pid=101).keep().action is Action.COMPLETE
    assert world.ran == [1]


def test_a_failure_that_its_flow_process_could_not_write_down_counts_as_one():
    world = World([(1, 5, "x"), (0, 8, None)], dies_at=0)
    with pytest.raises(Died):
        world.keeper().keep()
    world.keeper("t2", pid=101).keep()
    assert (world.ledger().attempts[0].code, world.ledger().attempts[0].failed_step) == (1, 5)


def test_an_interruption_that_its_flow_process_could_not_write_down_is_no_loss():
    world = World([(143, 5, None), (0, 8, None)], dies_at=0)
    with pytest.raises(Died):
        world.keeper().keep()
    world.record(1, 5, "interrupted")
    world.keeper("t2", pid=101).keep()
    assert world.said[0] == "interrupted by SIGTERM; resuming"


def test_a_run_whose_owner_lives_on_this_host_is_left_to_it(monkeypatch):
    monkeypatch.setattr("flows.keeper.OWNER_GRACE_S", 0.0)
    world = World([(-9, 4, None)], dies_at=0)
    with pytest.raises(Died):
        world.keeper(pid=100).keep()
    world.living.add(100)
    decision = world.keeper("t2", pid=101).keep()
    assert decision.action is Action.ABORT
    assert "flow process 100 on this host looks after a already" in decision.reason
    assert world.ledger().owner.token == "t1"


def test_a_trainer_that_is_still_saving_is_waited_for_before_the_next_begins():
    world = World([(-9, 4, None), (0, 8, None)], dies_at=0)
    with pytest.raises(Died):
        world.keeper().keep()
    seen = []

    def alive(process: ProcessId) -> bool:
        seen.append(process.pid)
        return process.pid == TRAINER.pid and seen.count(TRAINER.pid) <= 2

    keeper = replace(world.keeper("t2", pid=101), alive=alive)
    assert keeper.keep().action is Action.COMPLETE
    assert seen.count(TRAINER.pid) == 3
    assert "attempt 1 is still saving" in world.said[0]


def test_an_owner_that_was_replaced_leaves_at_its_next_decision():
    world = World([(-9, 4, None)] * 5)
    keeper = world.keeper()

    def train(number, started) -> Ended:
        LedgerFile(world.store, "a").change(lambda old: replace(old, owner=replace(keeper.owner, token="t2")))
        return World.train(world, number, lambda _trainer: None)

    decision = replace(keeper, train=train).keep()
    assert decision.action is Action.ABORT
    assert len(world.ran) == 1


def test_that_an_attempt_was_superseded_is_no_reason_for_the_next_flow_process_to_leave():
    world = World([(76, 0, None), (0, 8, None)])
    assert world.keeper().keep().action is Action.ABORT
    assert world.keeper("t2", pid=101).keep().action is Action.COMPLETE


def test_a_run_that_the_newer_attempt_has_done_is_complete_without_another_attempt():
    world = World([(76, 0, None)])
    world.keeper().keep()
    world.record(5, 8, "done")
    decision = world.keeper("t2", pid=101).keep()
    assert (decision.action, decision.reason) == (Action.COMPLETE, "done by attempt 5")
    assert world.ran == [1]


def test_a_run_that_is_scheduled_again_after_its_last_word_has_fresh_budgets():
    world = World([*[(-9, 0, None)] * 4, (-9, 4, None), (0, 8, None)])
    assert world.keeper().keep().action is Action.FAIL
    assert world.keeper("t2", pid=101).keep().action is Action.COMPLETE


def test_a_cancelled_run_that_a_person_resumes_has_fresh_budgets():
    """Nobody writes a last word when a run is cancelled; it failed after the resume by what was before it."""
    world = World([(-9, 0, None)] * 7, dies_at=2)
    with pytest.raises(Died):
        world.keeper().keep()
    assert world.keeper("t2", pid=101, asked=frozenset({"later"})).keep().action is Action.FAIL
    assert len(world.ran) == 3 + 4


def test_a_run_that_is_done_is_started_again_a_few_times_for_what_metrics_has_not_taken():
    world = World([(0, 8, None)] * 9, unsent=[7, 7, 0])
    assert world.keeper().keep() == Decision(Action.COMPLETE, "done")
    assert (world.ran, world.slept) == ([1, 2, 3], [5, 10])
    assert world.said[0] == "done, and 7 events are still to be delivered to Metrics; next try in 5 s"
    assert [entry.unsent for entry in world.ledger().attempts] == [7, 7, 0]


def test_the_location_is_waited_for_also_before_the_first_attempt(monkeypatch):
    world = World([(0, 8, None)])
    failures = iter([True, True, False])
    get = world.store.get

    def sometimes(key: str):
        if next(failures, False):
            raise Unavailable("no bucket")
        return get(key)

    monkeypatch.setattr(world.store, "get", sometimes)
    assert world.keeper().keep().action is Action.COMPLETE
    assert world.slept == [5, 10]
    assert world.said[0] == "waiting: no bucket; next try in 5 s"
    assert world.stood == [*world.said[:2], None]


class Shipped(World):
    """A location at which nobody keeps a record: the run's files are all that there is."""

    def keeper(self, *given: Any, **more: Any) -> Keeper:
        return replace(super().keeper(*given, **more), standing=Files(self.store, "checkpoints/"))

    def train(self, number, started) -> Ended:
        self.ran.append(number)
        code, files, _ = self.script.pop(0)
        for name in range(files):
            self.store.put(f"checkpoints/{number}-{name}", b"")
        self.store.put("telemetry/points", b"")
        started(TRAINER)
        if len(self.ran) - 1 == self.dies_at:
            raise Died
        ending = classify(code)
        return Ended(
            ending=ending if ending in (Ending.DONE, Ending.INTERRUPTED) else Ending.FAILED, code=code
        )


def test_a_command_that_keeps_something_new_is_resumed_however_often_it_is_killed():
    world = Shipped([*[(-9, 1, None)] * 12, (0, 0, None)])
    assert world.keeper().keep().action is Action.COMPLETE
    assert world.ran == list(range(1, 14))


def test_a_command_that_keeps_nothing_new_is_not_whatever_it_writes_elsewhere():
    world = Shipped([(-9, 0, None)] * 100)
    assert world.keeper().keep().action is Action.FAIL
    assert len(world.ran) == 4


@pytest.mark.parametrize("code", [1, 2, 75, 76])
def test_a_command_s_own_failures_are_retried_as_often_as_was_asked(code):
    world = Shipped([(code, 0, None)] * 3, policy=Policy(interruptions=3, failures=1, no_progress=4))
    assert world.keeper().keep().action is Action.FAIL
    assert world.ran == [1, 2]


def test_a_command_whose_flow_process_died_goes_on_as_the_next_attempt():
    world = Shipped([(-9, 2, None), (0, 0, None)], dies_at=0)
    with pytest.raises(Died):
        world.keeper().keep()
    assert world.keeper("t2", pid=101).keep().action is Action.COMPLETE
    assert [(entry.number, entry.code) for entry in world.ledger().attempts] == [(1, None), (2, 0)]
    assert world.said[-1] == "lost with its flow process; resuming"
