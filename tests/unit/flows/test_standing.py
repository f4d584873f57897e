"""How far a run is, by what lies at its location."""

from __future__ import annotations

from flows.standing import SEEN, Files, Inside, Recorded
from runtime.checkpoints.local import LocalStore
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.record import AttemptEntry, CheckpointEntry, EndEntry, RunRecord, write_record


def recorded(store, *, step: int, status: str | None = None) -> None:
    write_record(
        store,
        RunRecord(
            slug="a",
            attempt=AttemptEntry(number=3, session="0" * 32, host="h", pid=1, started_ms=0),
            checkpoints=(
                CheckpointEntry(step=step, attempt=3, published_ms=0, manifest="m", manifest_blake3="0"),
            ),
            ended=EndEntry(attempt=3, status=status, step=9, ended_ms=5) if status else None,
        ),
        etag=None,
    )


def test_a_run_record_says_who_claimed_the_run_how_far_it_is_and_how_it_ended():
    store = MemoryStore()
    standing = Recorded(store)
    assert (standing.recorded(), standing.progress(), standing.end()) == (0, 0, None)
    recorded(store, step=8, status="failed")
    assert (standing.recorded(), standing.progress()) == (3, 8)
    end = standing.end()
    assert end is not None
    assert (end.attempt, end.done, end.code, end.step) == (3, False, 1, 9)


def test_a_run_record_of_a_shipped_sexpgpu_run_says_how_far_it_is_and_no_more():
    store = MemoryStore()
    recorded(store, step=8, status="done")
    standing = Inside(store)
    assert (standing.recorded(), standing.progress(), standing.end()) == (None, 8, None)


def test_a_new_file_is_progress_and_one_that_was_replaced_or_is_there_again_is_none(tmp_path):
    """A command that was killed over the same half-written file had its budget filled again for ever."""
    store = LocalStore(tmp_path)
    standing = Files(store, "checkpoints/")
    assert (standing.progress(), standing.shown(0)) == (0, "nothing")
    store.put("telemetry/points.jsonl", b"{}")
    store.put("pulse.json", b"{}")
    assert standing.progress() == 0
    store.put("checkpoints/deep/model.pt", b"half")
    assert standing.progress() == 1
    for again in (b"another half", b"ha"):  # with a flow process of its own each
        store.put("checkpoints/deep/model.pt", again)
        assert Files(store, "checkpoints/").progress() == 1
    store.put("checkpoints/step-2", b"2")
    store.delete(["checkpoints/deep/model.pt"])
    assert Files(store, "checkpoints/").progress() == 2
    store.put("checkpoints/deep/model.pt", b"half")
    assert (standing.progress(), standing.shown(2)) == (2, "2 files")


def test_a_stranger_s_file_in_the_place_of_ours_is_replaced(tmp_path):
    store = LocalStore(tmp_path)
    store.put(SEEN, b"[1]")
    store.put("checkpoints/step-1", b"1")
    assert Files(store, "checkpoints/").progress() == Files(store, "checkpoints/").progress() == 1
