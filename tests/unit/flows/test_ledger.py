"""The ledger: one writer wins, rounds begin anew when a person asks, and a lost reply changes nothing."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from flows.endings import Action, Ending
from flows.ledger import LEDGER, Closed, Ledger, LedgerFile, Owner, TooBusy
from flows.processes import ProcessId
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.store import Conflict
from runtime.errors import Rejected, Superseded, Unavailable

PROCESS = ProcessId(host="h", boot="b", pid=1, start_ticks=2)


def owner(token: str) -> Owner:
    return Owner(token=token, process=PROCESS, flow_run_id="f", state_id="s", since_ms=0)


def attempts(file: LedgerFile) -> int:
    ledger = file.read()
    return len(ledger.attempts) if ledger is not None else 0


def begun(ledger: Ledger, *, recorded: int = 0, step: int = 0) -> Ledger:
    return ledger.started(host="h", recorded=recorded, start_step=step, at_ms=1)


def ended(ledger: Ledger, code: int | None, *, step: int = 0) -> Ledger:
    return ledger.with_last(replace(ledger.attempts[-1], ended_ms=2, end_step=step, code=code))


def test_a_ledger_is_read_as_it_was_written():
    file = LedgerFile(MemoryStore(), "a")
    assert file.read() is None
    written = file.change(lambda old: ended(begun(old.taken_by(owner("t"), asked={"s"})), -9, step=3))
    assert file.read() == written
    assert written.history()[0].ending is Ending.INTERRUPTED
    assert written.history()[0].advanced


def test_sixteen_writers_at_once_lose_no_change():
    file = LedgerFile(MemoryStore(), "a")
    threads = [threading.Thread(target=file.change, args=(begun,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert attempts(file) == 16


def test_only_the_owner_changes_the_ledger_as_the_owner():
    file = LedgerFile(MemoryStore(), "a")
    file.change(lambda old: old.taken_by(owner("first"), asked={"s"}))
    file.change_as("first", begun)
    file.change(lambda old: old.taken_by(owner("second"), asked={"s"}))
    with pytest.raises(Superseded):
        file.change_as("first", begun)
    assert attempts(file) == 1


class LostReply(MemoryStore):
    """A store whose first write comes through although its reply says that somebody else was first."""

    lost = False

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        written = super().put_if(key, data, etag=etag)
        if not self.lost:
            self.lost = True
            raise Conflict("the client's retry found its own write")
        return written


def test_a_lost_reply_does_not_begin_an_attempt_twice():
    file = LedgerFile(LostReply(), "a")
    assert len(file.change(begun).attempts) == 1
    assert attempts(file) == 1


class Contended(MemoryStore):
    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        del key, data, etag
        raise Conflict("somebody else, always")


def test_a_ledger_that_never_holds_still_is_reported():
    with pytest.raises(TooBusy, match=rf"{LEDGER} of a changed 50 times"):
        LedgerFile(Contended(), "a").change(begun)


class Away(MemoryStore):
    def get(self, key: str) -> tuple[bytes, str]:
        del key
        raise Unavailable("away")


def test_a_location_that_cannot_be_reached_is_said():
    with pytest.raises(Unavailable, match="away"):
        LedgerFile(Away(), "a").read()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"{", "is no ledger"),
        (b"[]", "is no ledger"),
        (b'{"slug":"a","version":2}', "has version 2, this Slugline reads 1"),
    ],
)
def test_what_is_no_ledger_is_refused_in_one_line(data, told):
    store = MemoryStore()
    store.put(LEDGER, data)
    with pytest.raises(Rejected, match=told) as caught:
        LedgerFile(store, "a").read()
    assert "\n" not in str(caught.value)


def test_an_attempt_has_the_number_that_the_run_record_will_give_it():
    ledger = begun(Ledger(slug="a"), recorded=0)
    assert ledger.attempts[-1].number == 1
    ledger = begun(ended(ledger, -9), recorded=1)
    assert ledger.attempts[-1].number == 2
    # Killed before it claimed the run: its number is still to be had.
    ledger = begun(ended(ledger, -9), recorded=1)
    assert [entry.number for entry in ledger.attempts] == [1, 2, 2]


def test_waiting_for_the_surroundings_is_one_line_however_long_it_takes():
    ledger = begun(Ledger(slug="a"))
    for _ in range(100):
        ledger = begun(ended(ledger, 75))
    assert len(ledger.attempts) == 1
    assert ledger.attempts[0].tries == 101
    assert ledger.open_entry() == ledger.attempts[0]


def test_a_wait_after_the_run_was_claimed_is_a_line_of_its_own():
    ledger = begun(ended(begun(Ledger(slug="a"), recorded=0), 75), recorded=1)
    assert [entry.number for entry in ledger.attempts] == [1, 2]


def test_budgets_survive_another_owner_but_not_the_last_word():
    ledger = ended(begun(Ledger(slug="a").taken_by(owner("1"), asked={"s"})), -9)
    ledger = ledger.taken_by(owner("2"), asked={"s"})
    assert len(ledger.history()) == 1
    ledger = replace(ledger, closed=Closed(action=Action.FAIL, reason="enough", at_ms=3)).taken_by(
        owner("3"), asked={"s"}
    )
    assert ledger.history() == ()
    assert ledger.closed is None
    assert len(ledger.attempts) == 1
    assert len(ended(begun(ledger), -9).history()) == 1


def test_budgets_are_fresh_when_a_person_has_scheduled_the_run_again():
    """A cancellation leaves no last word in the ledger: that the owner's state is older tells them apart."""
    ledger = ended(begun(Ledger(slug="a").taken_by(owner("1"), asked={"s"})), -9)
    assert ledger.taken_by(owner("2"), asked={"another"}).history() == ()


def test_a_wait_that_is_tried_again_in_a_new_round_belongs_to_it():
    ledger = ended(begun(Ledger(slug="a")), 75)
    ledger = replace(ledger, closed=Closed(action=None, reason="cancelled", at_ms=3)).taken_by(
        owner("2"), asked={"s"}
    )
    ledger = ended(begun(ledger), 0)
    assert [entry.ending for entry in ledger.history()] == [Ending.DONE]


def test_only_an_attempt_without_an_end_is_open():
    ledger = Ledger(slug="a")
    assert ledger.open_entry() is None
    ledger = begun(ledger)
    assert ledger.open_entry() is not None
    assert ledger.history() == ()
    assert ended(ledger, None).history()[0].ending is Ending.LOST


def test_without_a_run_record_the_ledger_counts_the_attempts_and_a_wait_is_none():
    ledger = Ledger(slug="a")
    numbers = []
    for ending in (Ending.INTERRUPTED, Ending.UNAVAILABLE, Ending.UNAVAILABLE, Ending.FAILED, Ending.DONE):
        ledger = ledger.started(host="h", recorded=None, start_step=0, at_ms=1)
        numbers.append(ledger.attempts[-1].number)
        ledger = ledger.with_last(
            replace(ledger.attempts[-1], ended_ms=2, end_step=0, code=75, ending=ending)
        )
    assert numbers == [1, 2, 2, 2, 3]
    assert [entry.tries for entry in ledger.attempts] == [1, 3, 1]


def test_how_an_attempt_ended_is_kept_where_its_code_does_not_say_it():
    """75 of a stranger's command is no reason to wait."""
    file = LedgerFile(MemoryStore(), "a")
    file.change(
        lambda old: begun(old).with_last(
            replace(begun(old).attempts[-1], ended_ms=2, end_step=0, code=75, ending=Ending.FAILED)
        )
    )
    ledger = file.read()
    assert ledger is not None
    assert [(ended.ending, ended.code) for ended in ledger.history()] == [(Ending.FAILED, 75)]


def test_a_try_after_a_wait_that_nobody_saw_end_is_lost_and_no_wait():
    waited = ended(begun(Ledger(slug="a")), 75)
    again = begun(waited)
    assert len(again.attempts) == 1
    lost = again.with_last(replace(again.attempts[-1], ended_ms=3, end_step=0))
    assert [one.ending for one in lost.history()] == [Ending.LOST]
