import logging
import threading
import time

import pytest
import torch

from runtime.checkpoints.location import Location
from runtime.checkpoints.memory import MemoryStore
from runtime.errors import Superseded, Unavailable
from runtime.events.targets import Backlog, Segment
from tests.support.checkpoints import (
    NOTHING_UNSENT,
    SLUG,
    Gate,
    begin,
    same,
    save,
    saver_of,
    state,
    the,
)
from tests.support.faults import FaultPlan, FaultyStore


@pytest.fixture
def store():
    return MemoryStore("s3://bucket/run")


def found(store):
    return the(Location(store).find(slug=SLUG).checkpoint)


def steps_of(store):
    return [entry.step for entry in the(Location(store).record()).checkpoints]


def keys(store, prefix=""):
    return sorted(one.key for one in store.list(prefix))


def test_what_was_saved_is_published_and_told_with_its_seconds(store):
    saver = saver_of(begin(store))
    before_s = time.perf_counter()
    published = the(save(saver, 8))
    assert (published.step, published.attempt, published.path) == (8, 1, "s3://bucket/run/step-00000008")
    assert 0 < published.seconds < time.perf_counter() - before_s
    assert published.published_ms == the(the(Location(store).record()).newest).published_ms
    assert same(found(store).tensors, state(8))


def test_file_names_carry_the_attempt_and_the_manifest_names_them(store):
    save(saver_of(begin(store)), 8)
    save(saver_of(begin(store)), 8)
    assert keys(store, "step-") == [
        "step-00000008/manifest-0001-0001.json",
        "step-00000008/manifest-0002-0001.json",
        "step-00000008/tensors-0001-0001-00000.safetensors",
        "step-00000008/tensors-0002-0001-00000.safetensors",
    ]


def test_a_save_stores_what_was_not_what_came_later(store):
    """The writer is held while training goes on for two steps, in place: also of scalars on the CPU."""
    gate = Gate()
    saver = saver_of(begin(store))
    tensors, data = state(8), {"options": [{"lr": 0.5}]}
    assert saver.save(8, tensors, data, gate.passing, lambda _: None)
    gate.reached()
    for _ in range(2):
        for tensor in tensors.values():
            tensor.add_(1)
        data["options"][0]["lr"] /= 2
    gate.open()
    saver.wait()
    assert same(found(store).tensors, state(8))
    assert found(store).data == {"options": [{"lr": 0.5}]}


def test_a_save_held_before_its_upload_stores_what_was(store):
    """Held even before the first byte is hashed: the digest is of the copy, the copy is of the moment."""
    held, go = threading.Event(), threading.Event()
    put = store.put

    def hold(key, data):
        held.set()
        assert go.wait(60)
        put(key, data)

    store.put = hold
    saver = saver_of(begin(MemoryStore()), workers=1)
    saver._store = store
    tensors = state(8)
    assert saver.save(8, tensors, {}, lambda: NOTHING_UNSENT, lambda _: None)
    assert held.wait(60)
    for tensor in tensors.values():
        tensor.zero_()
    go.set()
    saver.wait()
    (shard,) = [key for key in keys(store) if "tensors" in key]
    view = torch.frombuffer(bytearray(store.get(shard)[0]), dtype=torch.uint8)
    from runtime.checkpoints.format import read_tensors

    assert same(read_tensors([view], {}), state(8))


def test_every_save_stores_its_own_weights(store):
    saver = saver_of(begin(store), keep_last=5)
    tensors = state(0)
    for step in range(1, 4):
        for tensor in tensors.values():
            tensor.fill_(step)
        save(saver, step, tensors)
    for step in range(1, 4):
        checkpoint = the(Location(store).find(slug=SLUG, resume=step).checkpoint)
        assert all((tensor == step).all() for tensor in checkpoint.tensors.values())


def test_a_state_that_grows_or_changes_shape_is_laid_out_anew(store):
    saver = saver_of(begin(store), expected_bytes=10, shard_bytes=4096)
    save(saver, 1, {"a": torch.ones(3)})
    large = {"a": torch.randn(500_000), "b": torch.arange(7)}
    save(saver, 2, large)
    assert same(found(store).tensors, large)
    save(saver, 3, {"a": torch.ones(4)})
    assert same(found(store).tensors, {"a": torch.ones(4)})


def test_one_save_is_in_flight_and_the_next_boundary_asks_again(store):
    gate = Gate()
    saver = saver_of(begin(store))
    assert saver.save(1, state(1), {}, gate.passing, lambda _: None)
    gate.reached()
    assert not saver.save(2, state(2), {}, lambda: NOTHING_UNSENT, lambda _: None)
    gate.open()
    saver.wait()
    save(saver, 3)
    assert steps_of(store) == [1, 3]


def test_nothing_counts_before_the_events_are_durable(store):
    """`before_publish` runs when the tensors are stored and the record does not name them yet."""
    seen = []

    def look():
        seen.append((steps_of(store), len(keys(store, "step-00000001/tensors"))))
        return NOTHING_UNSENT

    save(saver_of(begin(store)), 1, backlog=look)
    assert seen == [([], 1)]
    assert steps_of(store) == [1]


def test_events_that_cannot_be_made_durable_stop_the_publishing(store, caplog):
    def fail():
        raise OSError("the events file is gone")

    saver = saver_of(begin(store))
    assert saver.save(1, state(1), {}, fail, lambda _: None)
    with pytest.raises(OSError, match="the events file is gone"):
        saver.wait()
    assert steps_of(store) == []
    assert "the checkpoint of step 1 is not stored" in caplog.text
    save(saver, 2)
    assert steps_of(store) == [2]


def test_a_listener_that_fails_costs_no_checkpoint(store, caplog):
    def fail(_):
        raise RuntimeError("nobody listens")

    saver = saver_of(begin(store))
    assert saver.save(1, state(1), {}, lambda: NOTHING_UNSENT, fail)
    saver.wait()
    assert steps_of(store) == [1]
    assert "nobody listens" in caplog.text


def test_old_checkpoints_go_with_all_their_files(store):
    saver = saver_of(begin(store), keep_last=2, keep_every=10, shard_bytes=300)
    for step in range(2, 16, 2):
        save(saver, step)
    assert steps_of(store) == [10, 12, 14]
    assert {key.split("/")[0] for key in keys(store, "step-")} == {
        f"step-{step:08d}" for step in (10, 12, 14)
    }


def test_a_resume_counts_only_what_it_loaded_or_published(store):
    saver = saver_of(begin(store), keep_last=3)
    for step in (4, 8, 12):
        save(saver, step)
    saver = saver_of(begin(store), keep_last=3)
    save(saver, 16)
    assert steps_of(store) == [4, 8, 12, 16]
    save(saver, 20)
    assert steps_of(store) == [12, 16, 20]


def test_a_purge_that_fails_is_logged_and_costs_nothing(store, caplog):
    saver = saver_of(begin(store))

    def refuse(_):
        raise Unavailable("no deleting today")

    store.delete = refuse
    for step in (1, 2, 3):
        save(saver, step)
    assert steps_of(store) == [2, 3]
    assert "old checkpoints are left for a later attempt to delete: no deleting today" in caplog.text


class TestFailure:
    def test_a_glitch_is_tried_again_and_said(self, store, caplog):
        saver = saver_of(begin(FaultyStore(store, FaultPlan(key="tensors").raise_at(1, times=2))))
        save(saver, 1)
        assert steps_of(store) == [1]
        assert caplog.text.count("trying again") == 2

    def test_a_failed_save_is_said_and_the_next_one_is_made(self, store, caplog):
        saver = saver_of(begin(FaultyStore(store, FaultPlan(key="tensors").raise_at(1, times=3))))
        assert saver.save(1, state(1), {}, lambda: NOTHING_UNSENT, lambda _: None)
        with pytest.raises(Unavailable, match="the fault plan says no to put step-00000001/tensors"):
            saver.wait()
        assert (
            "the checkpoint of step 1 is not stored: s3://bucket/run: the fault plan says no" in caplog.text
        )
        assert keys(store, "step-") == []
        save(saver, 2)
        assert steps_of(store) == [2]

    @pytest.mark.parametrize("what", ["tensors-.*00002", "manifest", r"run\.json"])
    def test_one_writers_error_fails_the_whole_save(self, store, what):
        """The last upload's failure is never swallowed: no record names a checkpoint without it."""
        attempt = begin(store)
        attempt.store = faulty = FaultyStore(store, FaultPlan(key=what).raise_at(1, times=3))
        saver = saver_of(attempt, shard_bytes=300, workers=4)
        assert saver.save(1, state(1), {}, lambda: NOTHING_UNSENT, lambda _: None)
        with pytest.raises(Unavailable):
            saver.wait(timeout_s=60)
        assert faulty.count == 3
        assert steps_of(store) == []

    def test_a_publish_of_unknown_outcome_deletes_nothing(self, store):
        """The swap took effect, its reply was lost and the record cannot be read: its files must stay."""
        saver = saver_of(begin(store))
        put_if, get = store.put_if, store.get

        def away(key):
            raise Unavailable(f"{key} cannot be read")

        def lose_the_reply(key, data, *, etag):
            put_if(key, data, etag=etag)
            store.get = away
            raise Unavailable(f"{key} cannot be written")

        store.put_if = lose_the_reply
        assert saver.save(1, state(1), {}, lambda: NOTHING_UNSENT, lambda _: None)
        with pytest.raises(Unavailable, match="cannot be read"):
            saver.wait()
        store.get = get
        assert same(found(store).tensors, state(1))

    def test_a_publish_whose_reply_was_lost_is_no_failure(self, store):
        attempt = begin(store)
        attempt.store = FaultyStore(
            store, FaultPlan(key=r"run\.json", when="after", do="raise", operations=("put_if",))
        )
        saver = saver_of(attempt)
        save(saver, 1)
        assert [entry.step for entry in the(Location(store).record()).checkpoints] == [1]

    def test_waiting_ends_in_time(self, store):
        gate = Gate()
        saver = saver_of(begin(store))
        assert saver.save(1, state(1), {}, gate.passing, lambda _: None)
        with pytest.raises(Unavailable, match="step 1 is not stored: the time allowed for it is over"):
            saver.wait(timeout_s=0.1)
        gate.open()

    def test_a_second_signal_gives_up_the_save_for_good(self, store):
        """Given up, it publishes nothing any more: the process may be writing its last words."""
        gate, give_up = Gate(), threading.Event()
        saver = saver_of(begin(store))
        assert saver.save(1, state(1), {}, gate.passing, lambda _: None)
        gate.reached()
        give_up.set()
        with pytest.raises(Unavailable, match="waiting for it was given up"):
            saver.wait(timeout_s=60, give_up=give_up)
        gate.open()
        assert the(saver._save).tidied.wait(60)
        assert steps_of(store) == []

    def test_a_back_off_does_not_outlive_the_waiting(self, store):
        faulty = FaultyStore(store, FaultPlan(key="tensors").raise_at(1, times=99))
        saver = saver_of(begin(faulty), backoff_s=(600,))
        assert saver.save(1, state(1), {}, lambda: NOTHING_UNSENT, lambda _: None)
        with pytest.raises(Unavailable):
            saver.wait(timeout_s=0.1)
        assert the(saver._save).tidied.wait(60)

    def test_waiting_for_nothing_returns_at_once(self, store):
        saver = saver_of(begin(store))
        saver.wait()
        save(saver, 1)
        saver.wait(timeout_s=0)

    def test_a_value_that_cannot_be_kept_is_the_callers_error(self, store):
        saver = saver_of(begin(store))
        with pytest.raises(ValueError, match="sparse"):
            saver.save(1, {"a": torch.eye(2).to_sparse()}, {}, lambda: NOTHING_UNSENT, lambda _: None)
        with pytest.raises(ValueError, match="not JSON compliant"):
            saver.save(1, {}, {"a": float("nan")}, lambda: NOTHING_UNSENT, lambda _: None)
        save(saver, 2)


class TestFencing:
    def test_an_older_attempt_publishes_nothing_and_overwrites_nothing(self, store):
        """The zombie wakes up in the middle of its save, when a newer attempt has claimed and published."""
        gate = Gate()
        zombie = begin(store)
        saver = saver_of(zombie)
        assert saver.save(8, state(1), {}, gate.passing, lambda _: None)
        gate.reached()
        save(saver_of(begin(store)), 8, state(2))
        gate.open()
        with pytest.raises(Superseded, match=r"attempt 2 on .* owns s3://bucket/run now"):
            saver.wait()
        with pytest.raises(Superseded):
            zombie.check()
        with pytest.raises(Superseded):
            saver.save(12, state(3), {}, lambda: NOTHING_UNSENT, lambda _: None)
        assert found(store).attempt == 2
        assert same(found(store).tensors, state(2))

    def test_an_older_attempt_is_told_at_a_boundary(self, store):
        zombie = begin(store)
        zombie.check()
        begin(store)
        the(zombie._watch).join()
        zombie._looked_s = -100.0
        zombie.check()
        the(zombie._watch).join()
        with pytest.raises(Superseded):
            zombie.check()

    def test_asking_never_waits_for_the_location(self, store):
        held = threading.Event()
        attempt = begin(store)
        get = store.get

        def slow(key):
            assert held.wait(60)
            return get(key)

        store.get = slow
        for _ in range(100):
            attempt.check()
        held.set()
        the(attempt._watch).join()

    def test_a_location_that_is_away_supersedes_nobody(self, store):
        attempt = begin(store)

        def away(key):
            raise Unavailable(key)

        store.get = away
        attempt.check()
        the(attempt._watch).join()
        attempt._looked_s = -100.0
        attempt.check()

    def test_an_older_attempt_cannot_write_its_end(self, store):
        zombie = begin(store)
        begin(store)
        with pytest.raises(Superseded):
            zombie.end("done", 3)
        assert the(Location(store).record()).ended is None

    def test_an_end_is_written_through_a_glitch(self, store):
        attempt = begin(store)
        attempt.store = FaultyStore(store, FaultPlan(operations=("put_if",)).raise_at(1, times=2))
        attempt.end("interrupted", 5)
        ended = the(the(Location(store).record()).ended)
        assert (ended.attempt, ended.status, ended.step) == (1, "interrupted", 5)


class TestSegments:
    def carry(self, saver, step, new, names):
        data = f"events of {new}".encode()
        save(saver, step, backlog=lambda: Backlog(Segment(new, data) if new else None, tuple(names)))

    def test_a_resume_gets_what_the_loaded_checkpoint_carries_in_order(self, store):
        saver = saver_of(begin(store))
        self.carry(saver, 1, "s.0-3", ["s.0-3"])
        self.carry(saver, 2, "s.4-5", ["s.0-3", "s.4-5"])
        attempt = begin(store)
        assert attempt.segments() == [
            Segment("s.0-3", b"events of s.0-3"),
            Segment("s.4-5", b"events of s.4-5"),
        ]

    def test_a_segment_is_stored_once_and_goes_when_no_kept_checkpoint_needs_it(self, store):
        saver = saver_of(begin(store))
        self.carry(saver, 1, "a", ["a"])
        self.carry(saver, 2, "b", ["a", "b"])
        self.carry(saver, 3, None, ["b"])
        assert keys(store, "segments/") == ["segments/a", "segments/b"]
        self.carry(saver, 4, None, [])
        assert keys(store, "segments/") == ["segments/b"]
        self.carry(saver, 5, "c", ["c"])
        assert keys(store, "segments/") == ["segments/c"]

    def test_inherited_segments_are_carried_on(self, store):
        self.carry(saver_of(begin(store)), 1, "a", ["a"])
        saver = saver_of(begin(store))
        self.carry(saver, 2, "b", ["a", "b"])
        assert [one.name for one in begin(store).segments()] == ["a", "b"]

    def test_what_a_failed_save_cut_off_travels_with_the_next(self, store):
        """The stream cuts a backlog once: were it dropped with the failed save, its events were lost."""
        attempt = begin(store)
        attempt.store = FaultyStore(store, FaultPlan(key="segments/a").raise_at(1, times=3))
        saver = saver_of(attempt)
        with pytest.raises(Unavailable):
            self.carry(saver, 1, "a", ["a"])
        self.carry(saver, 2, "b", ["a", "b"])
        assert [one.data for one in begin(store).segments()] == [b"events of a", b"events of b"]

    def test_a_lost_segment_is_said_and_costs_no_checkpoint(self, store, caplog):
        saver = saver_of(begin(store))
        self.carry(saver, 1, "a", ["a"])
        self.carry(saver, 2, "b", ["a", "b"])
        store.delete(["segments/a"])
        with caplog.at_level(logging.ERROR):
            assert [one.name for one in begin(store).segments()] == ["b"]
        assert "unsent events are lost: segments/a is missing" in caplog.text

    def test_a_rewound_run_inherits_the_older_checkpoints_events(self, store):
        saver = saver_of(begin(store))
        self.carry(saver, 1, "a", ["a"])
        self.carry(saver, 2, "b", ["b"])
        assert [one.name for one in begin(store, resume=1).segments()] == ["a"]
