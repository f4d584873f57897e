"""How far a run is, by what lies at its location."""

from __future__ import annotations

import os
import time

from flows.standing import Files, Inside, Recorded
from runtime.checkpoints.local import LocalStore
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.record import AttemptEntry, CheckpointEntry, Ended, RunRecord, write_record


def recorded(store, *, step: int, status: str | None = None) -> None:
    write_record(
        store,
        RunRecord(
            slug="a",
            attempt=AttemptEntry(number=3, session="0" * 32, host="h", pid=1, started_ms=0),
            checkpoints=(
                CheckpointEntry(step=step, attempt=3, published_ms=0, manifest="m", manifest_blake3="0"),
            ),
            ended=Ended(attempt=3, status=status, step=9, ended_ms=5) if status else None,
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


def test_a_new_file_is_progress_and_so_is_one_that_was_replaced_but_telemetry_is_none(tmp_path):
    standing = Files(LocalStore(tmp_path), "checkpoints/")
    assert standing.progress() == 0
    (tmp_path / "telemetry").mkdir()
    (tmp_path / "telemetry/points.jsonl").write_text("{}")
    (tmp_path / "pulse.json").write_text("{}")
    assert standing.progress() == 0
    (tmp_path / "checkpoints/deep").mkdir(parents=True)
    only = tmp_path / "checkpoints/deep/model.pt"
    only.write_text("1")
    first = standing.progress()
    assert first > 0
    assert standing.progress() == first
    os.utime(only, (time.time() + 5, time.time() + 5))  # as a script that writes it again does
    second = standing.progress()
    assert second > first
    (tmp_path / "checkpoints/old.pt").write_text("2")
    os.utime(tmp_path / "checkpoints/old.pt", (time.time() + 9, time.time() + 9))
    assert standing.progress() > second
    third = standing.progress()
    same_tick = (tmp_path / "checkpoints/old.pt").stat().st_mtime
    (tmp_path / "checkpoints/other.pt").write_text("3")
    os.utime(tmp_path / "checkpoints/other.pt", (same_tick, same_tick))
    assert standing.progress() > third
    assert standing.shown(standing.progress()).startswith("3 files, newest 2")
    assert standing.shown(0) == "nothing"
