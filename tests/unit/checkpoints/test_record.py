import json

import msgspec
import pytest

from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.record import (
    AttemptEntry,
    CheckpointEntry,
    EndEntry,
    RunRecord,
    change_record,
    read_record,
    write_record,
)
from runtime.checkpoints.store import Conflict
from runtime.errors import Rejected, Superseded, Unavailable
from tests.support.checkpoints import the

OURS = AttemptEntry(number=1, session="a" * 32, host="here", pid=1, started_ms=0)
THEIRS = AttemptEntry(number=2, session="b" * 32, host="there", pid=2, started_ms=0)


@pytest.fixture
def store():
    store = MemoryStore("s3://bucket/run")
    write_record(store, RunRecord(slug="a-run", attempt=OURS), etag=None)
    return store


def ending(status):
    ended = EndEntry(attempt=1, status=status, step=3, ended_ms=7)
    return lambda record: msgspec.structs.replace(record, ended=ended)


def test_no_record_is_none():
    assert read_record(MemoryStore()) is None


def test_the_record_is_json_that_people_can_read(store):
    text = store.get("run.json")[0].decode()
    assert text.endswith("}\n")
    told = json.loads(text)
    assert len(told.pop("blake3")) == 64
    assert told == {
        "version": 1,
        "slug": "a-run",
        "attempt": {"number": 1, "session": "a" * 32, "host": "here", "pid": 1, "started_ms": 0},
        "checkpoints": [],
        "refused": [],
        "ended": None,
    }


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"version":1}',
        b'"run"',
        b"\xff",
        b'{"version":1,"slug":3,"attempt":{}}',
        b"[" * 99_999,
    ],
    ids=range(9),
)
def test_what_is_no_record_is_rejected_with_the_way_out(text):
    store = MemoryStore("s3://bucket/run")
    store.put("run.json", text)
    with pytest.raises(
        Rejected, match=r"is no run record .*python -m runtime.checkpoints.rebuild s3://bucket/run"
    ):
        read_record(store)


def test_no_flipped_bit_passes_for_another_record():
    """It would drop a good checkpoint, or pass for a newer attempt."""
    store = MemoryStore("s3://bucket/run")
    entry = CheckpointEntry(step=5, attempt=1, published_ms=1, manifest="m", manifest_blake3="c" * 64)
    record = RunRecord(slug="a-run", attempt=OURS, checkpoints=(entry,))
    write_record(store, record, etag=None)
    data = store.get("run.json")[0]
    noticed = 0
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        store.put("run.json", bytes(flipped))
        try:
            assert the(read_record(store))[0] == record
        except Rejected:
            noticed += 1
    assert noticed > 4 * len(data)


def test_a_record_that_is_damaged_is_rejected_with_the_way_out(store):
    store.put("run.json", store.get("run.json")[0].replace(b"a-run", b"b-run"))
    with pytest.raises(Rejected, match=r"is damaged: its BLAKE3 .*python -m runtime.checkpoints.rebuild"):
        read_record(store)


def test_a_record_that_arrived_damaged_is_read_again(store, monkeypatch, caplog):
    whole, etag = store.get("run.json")
    replies = iter([whole.replace(b"a-run", b"b-run"), whole[:50], whole])
    monkeypatch.setattr(store, "get", lambda _: (next(replies), etag))
    assert the(read_record(store))[0].slug == "a-run"
    assert caplog.text.count("reading again: ") == 2


def test_a_record_that_turns_bad_under_a_run_is_the_surroundings_fault(store):
    store.put("run.json", b"{")
    with pytest.raises(Unavailable, match="is no run record"):
        change_record(store, OURS.session, ending("done"))


def test_a_record_without_a_digest_is_somebodys_own(store):
    told = json.loads(store.get("run.json")[0])
    del told["blake3"]
    store.put("run.json", json.dumps(told, indent=4).encode())
    assert the(read_record(store))[0] == RunRecord(slug="a-run", attempt=OURS)


def test_a_record_of_a_newer_version_is_left_alone():
    store = MemoryStore()
    store.put("run.json", b'{"version":2}')
    with pytest.raises(Rejected, match="has version 2, this Slugline reads 1: use a newer one"):
        read_record(store)


def test_a_change_is_applied_and_read_back(store):
    changed = change_record(store, OURS.session, ending("done"))
    assert changed.ended == EndEntry(attempt=1, status="done", step=3, ended_ms=7)
    assert the(read_record(store))[0] == changed


def test_a_change_by_somebody_who_no_longer_owns_the_run_is_superseded(store):
    record, etag = the(read_record(store))
    write_record(store, msgspec.structs.replace(record, attempt=THEIRS), etag=etag)
    with pytest.raises(Superseded, match="attempt 2 on there owns s3://bucket/run now"):
        change_record(store, OURS.session, ending("done"))


def test_a_swap_that_loses_a_race_is_made_on_what_the_winner_wrote(store):
    """Between our read and our swap the record changes: the change is applied to the new one."""
    put_if, races = store.put_if, iter([ending("interrupted")])

    def put_if_but_later(key, data, *, etag):
        for change in races:
            write_record_directly(change(the(read_record(store))[0]), etag)
        return put_if(key, data, etag=etag)

    def write_record_directly(record, etag):
        put_if("run.json", msgspec.json.encode(record), etag=etag)

    store.put_if = put_if_but_later
    seen = []

    def change(record):
        seen.append(record.ended)
        return ending("done")(record)

    assert the(change_record(store, OURS.session, change).ended).status == "done"
    assert [ended and ended.status for ended in seen] == [None, "interrupted"]


def test_a_swap_whose_reply_was_lost_is_not_made_twice(store):
    put_if, calls = store.put_if, []

    def lose_the_reply(key, data, *, etag):
        calls.append(data)
        put_if(key, data, etag=etag)
        raise Conflict("the retry met the first try's object")

    store.put_if = lose_the_reply
    assert the(change_record(store, OURS.session, ending("done")).ended).status == "done"
    assert len(calls) == 1


def test_a_record_that_somebody_deleted_is_said(store):
    store.delete(["run.json"])
    with pytest.raises(Unavailable, match=r"run.json is gone"):
        change_record(store, OURS.session, ending("done"))


def test_a_record_that_never_holds_still_is_given_up_on(store):
    def always_later(key, data, *, etag):
        raise Conflict(key)

    store.put_if = always_later
    with pytest.raises(Unavailable, match="kept changing under 20 swaps"):
        change_record(store, OURS.session, ending("done"))
