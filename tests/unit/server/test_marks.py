"""Applied message ids: one number and its gaps, against a plain set."""

from hypothesis import given
from hypothesis import strategies as st

from infra.server.store.marks import Marks

sequences = st.lists(st.integers(0, 40) | st.integers(0, 2**50), max_size=60)


@given(sequences)
def test_marks_remember_exactly_what_a_set_would(numbers):
    marks, model = Marks(), set()
    for number in numbers:
        assert (number in marks) == (number in model)
        if number not in model:
            marks.add(number)
            model.add(number)
    nearby = {
        neighbour for number in model for neighbour in (number - 1, number, number + 1) if neighbour >= 0
    }
    assert {number for number in nearby if number in marks} == model


@given(st.lists(sequences, max_size=6))
def test_holes_that_are_stored_batch_by_batch_restore_the_same_marks(batches):
    """Only what `flushed` names is written, and a restart in between loses nothing."""
    stored: dict[int, int] = {}
    marks = Marks()
    for numbers in batches:
        for number in numbers:
            if number not in marks:
                marks.add(number)
        deleted, new = marks.flushed()
        for first in deleted:
            stored.pop(first, None)
        stored.update(new)
        assert sorted(stored.items()) == marks.holes
        marks = Marks(marks.next, sorted(stored.items()))


@given(sequences)
def test_holes_are_apart_ascending_and_below_the_mark(numbers):
    marks = Marks()
    for number in set(numbers):
        marks.add(number)
    edges = [edge for hole in marks.holes for edge in hole]
    assert all(first <= last for first, last in marks.holes)
    assert all(last + 1 < first for last, first in zip(edges[1::2], edges[2::2], strict=False))
    assert not edges or edges[-1] < marks.next - 1


def test_a_million_in_order_cost_one_number():
    marks = Marks()
    for number in range(1_000_000):
        marks.add(number)
    assert (marks.next, marks.holes, marks.changed) == (1_000_000, [], set())


@given(sequences, st.integers(0, 5), st.integers(1, 40))
def test_a_range_beyond_all_marks_is_remembered_as_each_of_it(numbers, gap, count):
    marks, one_by_one = Marks(), Marks()
    for number in set(numbers):
        marks.add(number)
        one_by_one.add(number)
    more = range(marks.next + gap, marks.next + gap + count)
    marks.add_ascending(more)
    for number in more:
        one_by_one.add(number)
    assert (marks.next, marks.holes, marks.flushed()) == (
        one_by_one.next, one_by_one.holes, one_by_one.flushed()
    )  # fmt: skip
