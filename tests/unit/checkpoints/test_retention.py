import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoints.record import CheckpointEntry, SegmentEntry
from runtime.checkpoints.retention import Retention, unneeded_segments
from runtime.errors import Rejected


def entry(step, attempt=1, segments=()):
    return CheckpointEntry(
        step=step,
        attempt=attempt,
        published_ms=0,
        manifest=f"step-{step:08d}/manifest-{attempt:04d}-0001.json",
        manifest_blake3="",
        segments=tuple(SegmentEntry(name=name, size_bytes=0, blake3="") for name in segments),
    )


def steps(entries):
    return sorted(one.step for one in entries)


def all_known(entries):
    return {one.order for one in entries}


def test_the_last_k_are_kept():
    entries = [entry(step) for step in (4, 8, 12, 16)]
    assert steps(Retention(keep_last=3).dropped(entries, all_known(entries))) == [4]


def test_every_nth_step_is_kept_for_ever():
    entries = [entry(step) for step in range(0, 100, 5)]
    dropped = Retention(keep_last=2, keep_every=20).dropped(entries, all_known(entries))
    assert steps(set(entries) - set(dropped)) == [0, 20, 40, 60, 80, 90, 95]


def test_a_checkpoint_that_was_late_is_kept_for_ever_in_the_place_of_the_one_that_was_due():
    """A save was in flight at step 20, and 40 is no multiple of how often checkpoints are made."""
    entries = [entry(step) for step in (6, 12, 18, 21, 27, 33, 39, 45, 51, 57, 63)]
    left = entries[:1]
    for one in entries[1:]:
        left.append(one)
        gone = Retention(keep_last=2, keep_every=20).dropped(left, all_known(entries))
        left = [each for each in left if each not in gone]
    assert steps(left) == [21, 45, 57, 63]


def test_what_was_not_seen_whole_does_not_count():
    """Only 12 and 16 are known to be good: with three to keep, nothing may go yet."""
    entries = [entry(step) for step in (4, 8, 12, 16)]
    known = {(12, 1), (16, 1)}
    assert Retention(keep_last=3).dropped(entries, known) == ()
    assert steps(Retention(keep_last=2).dropped(entries, known)) == [4, 8]


def test_two_attempts_at_one_step_are_two_checkpoints():
    entries = [entry(4), entry(8, 1), entry(8, 2)]
    assert steps(Retention(keep_last=2).dropped(entries, all_known(entries))) == [4]


@pytest.mark.parametrize("keep_last", [1, 0, -3])
def test_fewer_than_two_are_refused(keep_last):
    with pytest.raises(Rejected, match=f"keep_last must be at least 2, got {keep_last}"):
        Retention(keep_last=keep_last)


def test_every_zeroth_is_refused():
    with pytest.raises(Rejected, match="keep_every must be at least 1 step, got 0"):
        Retention(keep_every=0)


@given(
    st.sets(st.tuples(st.integers(0, 30), st.integers(1, 3)), min_size=1),
    st.data(),
    st.integers(2, 5),
    st.none() | st.integers(1, 7),
)
def test_enough_that_are_known_to_be_good_are_always_left(orders, data, keep_last, keep_every):
    known = data.draw(st.sets(st.sampled_from(sorted(orders))))
    entries = [entry(*order) for order in orders]
    dropped = Retention(keep_last=keep_last, keep_every=keep_every).dropped(entries, known)
    kept = set(entries) - set(dropped)
    assert max(orders) in {one.order for one in kept}
    assert sum(one.order in known for one in kept) >= min(len(known), keep_last)
    assert not dropped or sum(one.order in known for one in kept) >= keep_last
    if keep_every is not None:
        assert all(one.step % keep_every for one in dropped)
        assert {step // keep_every for step, _ in orders} - {0} <= {one.step // keep_every for one in kept}


def test_a_segment_goes_with_the_last_checkpoint_that_needs_it():
    old, new = entry(4, segments=["a", "b"]), entry(8, segments=["b", "c"])
    assert unneeded_segments([old], [new]) == ("a",)
    assert unneeded_segments([old], []) == ("a", "b")
    assert unneeded_segments([], [new]) == ()
