"""Rescue: who is dead, who only looks like it, and that nobody is helped twice."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from flows.deploy import main as deploy
from flows.endings import Action
from flows.flow_runs import ASKED, FlowRun, State
from flows.ledger import Closed, LedgerFile, Owner, Rescue
from flows.life import Patience
from flows.processes import ProcessId
from flows.pulse import PULSE, Pulse
from flows.rescue import main as rescue
from flows.rescuer import IN_VAIN, Rescuer
from flows.run_page import RESULT
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.record import AttemptEntry, EndEntry, RunRecord, write_record
from runtime.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flows.run_writer import Record

NOW = datetime(2027, 1, 1, tzinfo=UTC)
HERE, THERE = "here", "there"


@dataclass
class Prefect:
    """The part of a server that rescue asks, in memory."""

    history: list[State] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=lambda: ["slug:a"])
    heartbeat: datetime | None = None
    ids: count[int] = field(default_factory=count)
    set_to: list[str] = field(default_factory=list)
    listed: list[FlowRun] | None = None
    ended: list[str] = field(default_factory=list)
    asking_takes_s: float = 0.0
    passed_s: float = 0.0

    def put(self, type: str, name: str = "", message: str = "") -> State:  # noqa: A002 - Prefect's word
        state = State(
            id=str(next(self.ids)), type=type, name=name or type.capitalize(), timestamp=NOW, message=message
        )
        self.history.append(state)
        return state

    def run(self, _id: str) -> FlowRun:
        return FlowRun(
            id="f",
            name="a",
            state=self.history[-1],
            created=NOW,
            parameters={"parameters": self.parameters},
            tags=self.tags,
        )

    def runs(self, *, states) -> list[FlowRun]:
        if self.listed is not None:
            return self.listed
        run = self.run("f")
        return [run] if self.history[-1].type in states else []

    def states(self, _id: str) -> list[State]:
        return list(self.history)

    def end_task_runs(self, _id: str, *, message: str) -> None:
        self.ended.append(message)

    def last_heartbeat(self, _id: str) -> datetime | None:
        self.passed_s += self.asking_takes_s
        return self.heartbeat

    def set_state(self, _id, state, *, message, force=False) -> State:
        del force
        self.set_to.append(state.get("name", state["type"]))
        return self.put(state["type"], state.get("name", ""), message)


class Night:
    """A run, its location, and a rescuer with a clock of its own."""

    def __init__(self, *, host: str = HERE, owner_host: str = HERE, location: str = "s3://bucket/a") -> None:
        self.store = MemoryStore()
        self.prefect = Prefect(parameters={"experiment": "m", "slug": "a", "location": location})
        self.now_s = 0.0
        self.living: set[int] = set()
        self.told: list[tuple[Record, dict[str, Any]]] = []
        self.told_under: list[str] = []
        self.owner_host = owner_host
        self.rescuer = self.another(host)
        self.prefect.put("SCHEDULED")
        self.prefect.put("RUNNING")

    def another(self, host: str) -> Rescuer:
        return Rescuer(
            Patience(),
            {},
            host=host,
            clock=lambda: self.now_s + self.prefect.passed_s,
            alive=lambda process: process.pid in self.living if process.host == host else None,
            open_store=lambda _location, _environment: self.store,
            tell=self.tell,
        )

    def tell(self, record: Record, said: Mapping[str, Any]) -> None:
        self.told.append((record, dict(said)))
        self.told_under.append(self.prefect.history[-1].type)

    def owned(self, *, token: str = "t", pid: int = 1) -> None:
        owner = Owner(
            token=token,
            process=ProcessId(host=self.owner_host, boot="b", pid=pid, start_ticks=1),
            flow_run_id="f",
            state_id=self.prefect.history[-1].id,
            since_ms=0,
        )
        self.file().change(
            lambda old: old.taken_by(owner, asked={state.id for state in self.prefect.history})
        )

    def file(self) -> LedgerFile:
        return LedgerFile(self.store, "a")

    def beat(self, number: int) -> None:
        pulse = Pulse(token="t", beat=number, at_ms=0, step=0, event_ms=0)
        self.store.put(PULSE, msgspec.json.encode(pulse))

    def look(self, *, after_s: float = 0.0) -> list[str]:
        self.now_s += after_s
        return self.rescuer.look(self.prefect)

    def look_for(self, seconds: float) -> float:
        """Look every 5 seconds until something is done; return the clock then, `math.inf` without a deed."""
        end = self.now_s + seconds
        while self.now_s < end:
            if self.look(after_s=5):
                return self.now_s
        return math.inf


def test_a_run_whose_flow_process_is_gone_from_this_host_is_scheduled_again_at_once():
    night = Night()
    night.owned(pid=1)
    assert night.look() == ["f"]
    assert night.prefect.set_to == ["AwaitingRetry"]
    assert night.prefect.history[-1].message == "Rescued: its flow process 1 is gone"


@pytest.mark.parametrize("state", ["RUNNING", "CRASHED", "PENDING", "CANCELLING"])
def test_a_run_whose_flow_process_lives_is_left_alone_whatever_prefect_says(state):
    night = Night()
    night.owned(pid=1)
    night.living.add(1)
    night.prefect.put(state)
    assert night.look_for(600) == math.inf


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "SCHEDULED", "PAUSED"])
def test_a_run_at_rest_is_left_alone(state):
    night = Night()
    night.owned()
    night.prefect.put(state)
    assert night.look_for(600) == math.inf


def test_a_shipped_command_is_rescued_as_an_experiment_is_and_its_page_says_so():
    night = Night()
    night.prefect.parameters = {
        "command": ["true"],
        "tree": "0" * 64,
        "slug": "a",
        "location": "s3://bucket/a",
    }
    night.owned(pid=1)
    assert night.look() == ["f"]
    ((record, said),) = night.told
    assert (record.slug, record.kind, record.command) == ("a", "command", ("true",))
    assert said == {"state": "retrying", "reason": "Rescued: its flow process 1 is gone"}
    assert night.told_under == ["RUNNING"]  # later, a new attempt may run already: nothing speaks over it


def test_a_page_that_cannot_be_told_keeps_nobody_from_being_rescued(monkeypatch):
    night = Night()
    night.owned(pid=1)
    monkeypatch.setattr(night, "told", None)
    assert night.look() == ["f"]
    assert night.prefect.set_to == ["AwaitingRetry"]


def test_a_last_word_that_was_decided_and_not_reported_is_said_on_the_page_with_the_result():
    night = Night()
    night.owned(pid=1)
    night.store.put("result.json", b'{"f1": 0.9}')

    def closed(ledger):
        ledger = ledger.started(host=HERE, recorded=None, start_step=0, at_ms=0)
        ledger = ledger.with_last(replace(ledger.attempts[-1], ended_ms=1, end_step=0, code=-9))
        return replace(ledger, closed=Closed(action=Action.FAIL, reason="killed too often", at_ms=1))

    night.file().change(closed)
    assert night.look() == ["f"]
    assert [said for _record, said in night.told] == [
        {"state": "failed", "reason": "killed too often", "exit_code": 137, "result": '{"f1": 0.9}'}
    ]


def left_to_newer(night: Night, *, pid: int, ended: bool = False) -> None:
    """Attempt 1 was superseded by attempt 2, a process of this host that no flow started."""
    night.owned()

    def superseded(ledger):
        ledger = ledger.started(host=HERE, recorded=0, start_step=0, at_ms=0)
        return ledger.with_last(replace(ledger.attempts[-1], ended_ms=1, end_step=0, code=76))

    night.file().change(superseded)
    attempt = AttemptEntry(number=2, session="0" * 32, host=HERE, pid=pid, started_ms=0)
    end = EndEntry(attempt=2, status="done", step=8, ended_ms=2) if ended else None
    write_record(night.store, RunRecord(slug="a", attempt=attempt, ended=end), etag=None)


def test_a_run_that_was_left_to_a_newer_attempt_is_not_taken_from_it_while_it_lives():
    night = Night()
    left_to_newer(night, pid=os.getpid())
    assert night.look_for(600) == math.inf


def test_a_run_that_was_left_to_a_newer_attempt_is_scheduled_when_that_has_ended_or_gone_quiet():
    night = Night()
    left_to_newer(night, pid=os.getpid(), ended=True)
    assert night.look() == ["f"]
    night = Night()
    left_to_newer(night, pid=2**22)  # above every process number
    assert 60 <= night.look_for(90) <= 65


def test_a_crashed_run_is_scheduled_again_at_once():
    night = Night(owner_host=THERE)
    night.owned()
    night.prefect.put("CRASHED", message="Process exited with status code: -9. Much advice.")
    assert night.look() == ["f"]
    assert night.prefect.history[-1].message == "Rescued: Process exited with status code: -9"


def test_a_run_of_another_host_is_dead_when_every_sign_stood_still_for_a_minute():
    night = Night(owner_host=THERE)
    night.owned()
    night.beat(1)
    night.prefect.heartbeat = NOW
    assert night.look() == []
    assert 60 <= night.look_for(90) <= 65


def test_missing_heartbeats_alone_never_prove_death():
    night = Night(owner_host=THERE)
    night.owned()
    for number in range(200):
        night.beat(number)
        assert night.look(after_s=5) == []


def test_a_location_without_a_pulse_alone_never_proves_death_either():
    night = Night(owner_host=THERE)
    night.owned()
    for number in range(200):
        night.prefect.heartbeat = NOW + timedelta(seconds=number)
        assert night.look(after_s=5) == []


def test_a_new_checkpoint_is_a_sign_of_life():
    night = Night(owner_host=THERE)
    night.owned()
    etag = None
    for number in range(20):
        attempt = AttemptEntry(number=number, session="0" * 32, host=THERE, pid=1, started_ms=0)
        etag = write_record(night.store, RunRecord(slug="a", attempt=attempt), etag=etag)
        assert night.look_for(55) == math.inf


def test_time_in_which_rescue_could_not_look_does_not_count():
    """Server and location were away for ten minutes: whoever lives must first have a chance to be seen."""
    night = Night(owner_host=THERE)
    night.owned()
    night.beat(1)
    night.look()
    assert night.look(after_s=600) == []
    assert night.look_for(30) == math.inf
    night.beat(2)
    assert night.look_for(55) == math.inf


def test_after_an_outage_a_dead_run_is_still_found_within_90_seconds_of_its_death():
    """It died with the server, which was back after 20 seconds."""
    night = Night(owner_host=THERE)
    night.owned()
    night.beat(1)
    night.look()
    died_at = night.now_s
    night.look(after_s=20)
    assert night.look_for(120) - died_at < 85


def test_a_started_flow_process_that_has_not_taken_over_yet_is_not_taken_for_its_dead_predecessor():
    night = Night()
    night.owned(pid=1)
    night.look()
    night.prefect.put("PENDING")
    assert night.look_for(30) == math.inf
    night.prefect.put("RUNNING")
    assert night.look_for(30) == math.inf
    night.owned(token="t2", pid=2)
    night.living.add(2)
    assert night.look_for(600) == math.inf


def test_a_flow_process_that_never_starts_is_scheduled_again_after_a_minute():
    night = Night()
    night.prefect.put("PENDING")
    night.look()
    assert 60 <= night.look_for(90) <= 65


def test_a_local_location_is_left_to_the_rescue_of_its_host(caplog):
    night = Night(location="/data/a")
    night.prefect.tags.append(f"host:{THERE}")
    night.prefect.put("CRASHED")
    assert night.look_for(600) == math.inf
    assert caplog.text.count("is on there's disk: only the rescue there can help it") == 1
    night.rescuer = night.another(THERE)
    assert night.look() == ["f"]


def test_of_two_rescues_one_acts():
    night = Night()
    night.owned()
    night.prefect.put("CRASHED")
    other = night.another(THERE)
    stale = night.prefect.run("f")
    assert night.look() == ["f"]
    night.prefect.listed = [stale]  # it read the list before the first one acted
    assert other.look(night.prefect) == []
    assert night.prefect.set_to == ["AwaitingRetry"]


def test_a_state_that_changed_meanwhile_is_left_alone():
    night = Night()
    night.owned()
    night.prefect.put("CRASHED")
    stale = night.prefect.run("f")
    night.prefect.listed = [stale]
    night.prefect.put("SCHEDULED", "AwaitingRetry")
    assert night.look() == []
    assert night.prefect.set_to == []


def test_a_last_word_is_not_reported_over_a_state_that_changed_meanwhile():
    """It was cancelling when the look began; by now its worker has cancelled it, and its user resumed it."""
    night = Night()
    night.owned()
    night.prefect.put("CANCELLING")
    stale = night.prefect.run("f")
    night.prefect.put("CRASHED")
    night.prefect.listed = [replace(stale, state=night.prefect.history[-1])]
    night.prefect.put("CANCELLED")
    night.prefect.put("SCHEDULED", "AwaitingRetry", ASKED)
    assert night.look() == []
    assert night.prefect.set_to == []


def test_a_look_that_takes_long_is_no_time_in_which_rescue_could_not_look():
    """Of three hundred runs none was ever found dead: each look took longer than three polls."""
    night = Night(owner_host=THERE)
    night.owned()
    night.prefect.asking_takes_s = 45.0
    for _ in range(2):
        assert night.look(after_s=5) == []
    assert night.look(after_s=5) == ["f"]


def test_the_task_run_of_a_dead_flow_process_is_ended():
    night = Night()
    night.owned(pid=1)
    assert night.look() == ["f"]
    assert night.prefect.ended == ["Its flow process has ended: its flow process 1 is gone"]


def test_a_run_on_a_disk_that_no_start_has_named_leaves_nothing_on_this_one():
    night = Night(location="/data/a")
    night.prefect.put("CRASHED")
    assert night.look() == ["f"]
    assert list(night.store.list("")) == []


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_bad_number_of_seconds_is_refused(seconds, capsys):
    with pytest.raises(SystemExit) as ended:
        rescue(["--poll-s", seconds])
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"--poll-s: must be a number of seconds above 0, got {seconds!r}" in said


@pytest.mark.parametrize(
    ("main", "given", "named"),
    [
        (rescue, ["--poll", "5"], "--poll"),
        (rescue, ["--quiet-s"], "--quiet-s"),
        (deploy, [], "--pool"),
        (deploy, ["--pool", "gpu", "--env", "A"], "--env takes NAME=VALUE, got 'A'"),
    ],
)
def test_a_mistake_in_the_flags_of_a_service_is_one_line(main, given, named, capsys):
    with pytest.raises(SystemExit) as ended:
        main(given)
    (said,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert named in said


def test_a_rescue_that_died_between_its_claim_and_its_deed_is_followed_by_another_after_a_minute():
    night = Night()
    night.owned()
    state = night.prefect.put("CRASHED")
    claim = Rescue(state_id=state.id, by=THERE, at_ms=0, owner="t", in_vain=0)
    night.file().change(lambda old: replace(old, rescue=claim))
    assert night.look() == ["f"]


def test_a_run_that_crashes_before_any_flow_process_takes_it_over_has_failed_in_the_end():
    night = Night()
    for _ in range(IN_VAIN + 1):
        night.prefect.put("CRASHED", message="no module named flows")
        assert night.look() == ["f"]
    assert night.prefect.set_to == ["AwaitingRetry"] * IN_VAIN + ["FAILED"]
    assert "before it could begin: no module named flows. Schedule it again" in str(night.prefect.history[-1])


def test_also_one_that_has_no_location_yet():
    night = Night()
    del night.prefect.parameters["location"]
    for _ in range(IN_VAIN):
        night.prefect.put("CRASHED", message="no module named flows")
        assert night.look() == ["f"]
    assert night.prefect.set_to == ["AwaitingRetry"] * (IN_VAIN - 1) + ["FAILED"]


@pytest.mark.parametrize("location", ["s3://bucket/a", None])
def test_who_schedules_it_again_gets_all_of_rescue_again(location):
    """The crashes of before counted on: one more, and it had failed."""
    night = Night()
    if location is None:
        del night.prefect.parameters["location"]
    for _ in range(IN_VAIN + (location is not None)):
        night.prefect.put("CRASHED", message="no module named flows")
        night.look()
    assert night.prefect.set_to[-1] == "FAILED"
    night.prefect.put("SCHEDULED", message=ASKED)
    night.prefect.put("CRASHED", message="no module named flows")
    night.look()
    assert night.prefect.set_to[-1] == "AwaitingRetry"


def test_rescues_that_led_to_a_new_owner_were_not_in_vain():
    night = Night()
    for number in range(3 * IN_VAIN):
        night.prefect.put("RUNNING")
        night.owned(token=f"t{number}", pid=number)
        assert night.look() == ["f"]
        assert night.prefect.history[-1].name == "AwaitingRetry"


def test_a_run_that_crashed_while_it_was_cancelled_is_cancelled():
    night = Night()
    night.owned()
    night.prefect.put("CANCELLING")
    night.prefect.put("CRASHED")
    assert night.look() == ["f"]
    assert night.prefect.set_to == ["CANCELLED"]


def test_a_cancelling_run_with_no_sign_of_life_is_cancelled_with_its_result_and_never_scheduled():
    night = Night()
    night.owned()
    night.store.put(RESULT, b'{"f1": 0.9}')
    night.prefect.put("CANCELLING")
    night.look()
    assert night.look_for(90) < math.inf
    assert night.prefect.set_to == ["CANCELLED"]
    assert [(said["state"], said["result"]) for _, said in night.told] == [("cancelled", '{"f1": 0.9}')]


def test_a_run_that_was_cancelled_once_and_scheduled_again_is_helped():
    night = Night()
    for state in ("CANCELLING", "CANCELLED", "SCHEDULED", "RUNNING"):
        night.prefect.put(state)
    night.owned()
    assert night.look() == ["f"]
    assert night.prefect.set_to == ["AwaitingRetry"]


@pytest.mark.parametrize(("action", "state"), [(Action.COMPLETE, "COMPLETED"), (Action.FAIL, "FAILED")])
def test_a_last_word_that_its_flow_process_could_not_report_is_reported(action, state):
    night = Night()
    night.owned()
    night.file().change(lambda old: replace(old, closed=Closed(action=action, reason="the reason", at_ms=0)))
    assert night.look() == ["f"]
    assert night.prefect.set_to == [state]
    assert night.prefect.history[-1].message == "the reason"


def test_the_last_word_of_an_earlier_round_is_not_this_rounds():
    night = Night()
    night.owned()
    night.file().change(lambda old: replace(old, closed=Closed(action=Action.FAIL, reason="then", at_ms=0)))
    night.prefect.put("FAILED")
    night.prefect.put("SCHEDULED")
    night.prefect.put("PENDING")
    night.prefect.put("CRASHED")
    assert night.look() == ["f"]
    assert night.prefect.set_to == ["AwaitingRetry"]


def test_a_location_that_cannot_be_reached_delays_one_run_and_stops_nothing(caplog, monkeypatch):
    night = Night()
    night.owned()
    night.prefect.put("CRASHED")

    def away(_key):
        raise Unavailable("no bucket")

    with monkeypatch.context() as patched:
        patched.setattr(night.store, "get", away)
        assert night.look_for(60) == math.inf
    assert caplog.text.count("cannot be looked at now: no bucket") == 1
    assert night.look() == ["f"]


def test_one_odd_run_does_not_keep_rescue_from_the_next(caplog):
    night = Night()
    night.owned()
    odd = replace(
        night.prefect.run("f"), id="odd", parameters={"parameters": {"experiment": "m", "knobs": 7}}
    )
    night.prefect.listed = [odd, night.prefect.run("f")]
    assert night.look() == ["f"]
    assert "could not be looked at" in caplog.text


def test_a_flow_run_that_is_not_ours_is_left_alone():
    night = Night()
    night.prefect.parameters = {"something": "else"}
    night.prefect.put("CRASHED")
    assert night.look_for(60) == math.inf
