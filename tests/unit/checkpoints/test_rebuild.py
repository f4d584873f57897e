import pytest

from runtime.checkpoints.local import LocalStore
from runtime.checkpoints.location import Location
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.rebuild import main, rebuild_record
from runtime.errors import Rejected, Superseded
from runtime.events.targets import Backlog, Segment
from tests.support.checkpoints import SLUG, begin, same, save, saver_of, state, the


@pytest.fixture
def store():
    return MemoryStore("s3://bucket/run")


def orders(record):
    return [entry.order for entry in record.checkpoints]


def run_with(store, steps, **found):
    saver = saver_of(begin(store, **found), keep_last=100)
    for step in steps:
        save(saver, step, backlog=lambda: Backlog(Segment(f"s{step}", b"x"), (f"s{step}",)))  # noqa: B023


def test_the_record_is_made_again_from_the_manifests(store):
    run_with(store, [4, 8])
    run_with(store, [12])
    before = the(Location(store).record())
    store.delete(["run.json"])
    record = rebuild_record(store)
    assert record == the(Location(store).record())
    assert orders(record) == orders(before)
    assert [(e.manifest, e.manifest_blake3, e.segments) for e in record.checkpoints] == [
        (e.manifest, e.manifest_blake3, e.segments) for e in before.checkpoints
    ]
    attempt = begin(store)
    assert (attempt.number, the(attempt.checkpoint).step) == (4, 12)
    assert same(the(attempt.checkpoint).tensors, state(12))
    assert [one.name for one in attempt.segments()] == ["s12"]


def test_what_was_rewound_past_stays_out(store):
    run_with(store, [4, 8, 12])
    run_with(store, [6, 10], resume=4)
    run_with(store, [8], resume=6)
    store.delete(["run.json"])
    assert orders(rebuild_record(store)) == [(4, 1), (6, 2), (8, 3)]


def test_a_run_that_started_over_forgets_what_was(store):
    run_with(store, [4, 8])
    run_with(store, [4], resume="never")
    store.delete(["run.json"])
    assert orders(rebuild_record(store)) == [(4, 2)]


def test_a_checkpoint_without_all_its_files_stays_out(store):
    run_with(store, [4, 8, 12])
    store.delete(["run.json", "step-00000008/tensors-0001-0002-00000.safetensors"])
    store.put("step-00000012/manifest-0001-0003.json", b"{")
    assert orders(rebuild_record(store)) == [(4, 1)]


def test_a_live_attempt_is_superseded_by_a_rebuild(store):
    attempt = begin(store)
    save(saver_of(attempt), 4)
    store.delete(["run.json"])
    rebuild_record(store)
    with pytest.raises(Superseded):
        attempt.end("done", 4)


def test_a_record_that_is_there_is_left_alone(store):
    run_with(store, [4])
    before = store.get("run.json")
    with pytest.raises(Rejected, match=r"run.json is there: move it away first"):
        rebuild_record(store)
    assert store.get("run.json") == before


def test_nothing_is_made_from_nothing_or_from_two_runs(store):
    with pytest.raises(Rejected, match="holds whole checkpoints of no run"):
        rebuild_record(store)
    run_with(store, [4])
    store.delete(["run.json"])
    saver = saver_of(begin(store, slug="another", resume="never"))
    save(saver, 8)
    store.delete(["run.json"])
    with pytest.raises(Rejected, match=r"checkpoints of \['a-run', 'another'\]"):
        rebuild_record(store)


def test_the_command_rebuilds_and_says_what_it_did(tmp_path, capsys):
    run_with(LocalStore(tmp_path), [4, 8])
    (tmp_path / "run.json").unlink()
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{SLUG}: the record names the checkpoints of steps 4, 8\n"
    assert main([str(tmp_path)]) == 2
    assert "move it away first" in capsys.readouterr().err
    assert main([]) == 2
