"""Clients' random ids: applied once each, against a plain set, with little memory and on both databases."""

import hashlib
import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.server.store import applied, sql
from infra.server.store.applied import GENERATION_MS, Applied
from infra.server.store.id_pages import Pages, Probe, columns, hits
from infra.server.store.store import Store

NOW_MS = 3_000 * GENERATION_MS + 5
experiments = itertools.count(1)


def text(number):
    return hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest() if number % 3 else f"né-{number}"


class Ids:
    """One experiment's ids in a store, as batches write them, beside the plain set that they must equal."""

    def __init__(self, store, max_memory_bytes=applied.MAX_MEMORY_BYTES):
        self.store = store
        self.applied = Applied(max_memory_bytes=max_memory_bytes)
        self.experiment_id = next(experiments)
        self.plain = set()

    def apply(self, connection, message_ids, now_ms):
        known = self.applied.known(connection, self.experiment_id, message_ids, now_ms=now_ms)
        new = list(dict.fromkeys(one for one in message_ids if one not in known))
        if new:
            self.applied.remember(connection, self.experiment_id, new, now_ms=now_ms)
        return new

    def send(self, message_ids, now_ms=NOW_MS):
        new = self.store.write_now(lambda connection: self.apply(connection, message_ids, now_ms))
        assert new == list(dict.fromkeys(one for one in message_ids if one not in self.plain))
        self.plain.update(new)

    def send_in_vain(self, message_ids):
        def work(connection):
            self.apply(connection, message_ids, NOW_MS)
            self.applied.forget()  # as the writer does with a batch that failed
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            self.store.write_now(work)

    def rows(self, what="count(*)"):
        statement = f"SELECT {what} FROM applied_keys WHERE experiment_id = ?"
        return self.store.read_now(
            lambda connection: sql.scalar(connection, statement, (self.experiment_id,))
        )


@pytest.fixture
def store(address):
    store = Store(address)
    yield store
    store.close()


@pytest.fixture
def small(monkeypatch):
    """Pieces of eight keys: a few hundred ids are a deep tree."""
    monkeypatch.setattr(applied, "PAGE_KEYS", 8)
    monkeypatch.setattr(applied, "_SMALL_ROW", 3)


batches = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "send_in_vain", "forget"]),
        st.lists(st.integers(0, 400), min_size=1, max_size=40),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches, st.sampled_from([0, applied.MAX_MEMORY_BYTES]))
def test_ids_equal_a_plain_set_whatever_is_rolled_back_or_forgotten(store, small, steps, memory):
    one, other = Ids(store, memory), Ids(store, memory)
    other.applied = one.applied
    for what, numbers in steps:
        message_ids = [text(number) for number in numbers]
        if what == "forget":
            one.applied.forget()
        else:
            getattr(one, what)(message_ids)
            other.send(message_ids[::2])
    one.applied.forget()
    one.send([text(number) for number in range(401)])


def test_thousands_of_ids_are_a_tree_and_each_is_found_again(store):
    ids, draw = Ids(store), random.Random(0)
    numbers = list(range(60_000))
    draw.shuffle(numbers)
    for first in range(0, len(numbers), 1000):
        ids.send([text(number) for number in numbers[first : first + 1000]])
    assert ids.rows("max(depth)") >= 1
    assert ids.rows("sum(count)") == len(ids.plain)
    ids.applied.forget()
    for first in range(0, len(numbers), 7_000):
        again = [text(number) for number in numbers[first : first + 1000]]
        ids.send([*again, f"new {first}"])


def test_what_a_commit_moves_is_bounded(store, small, monkeypatch):
    """However large the tree: not every node that is full is dealt out at once."""
    ids, moved = Ids(store), []
    delete = applied._delete

    def counted(connection, row_ids):
        moved.extend(row_ids)
        delete(connection, row_ids)

    monkeypatch.setattr(applied, "_delete", counted)
    most = 0
    for first in range(0, 3_000, 5):
        moved.clear()
        ids.send([f"{number}" for number in range(first, first + 5)])
        most = max(most, len(moved))
    depth = ids.rows("max(depth)")
    assert depth >= 3
    assert most <= 4 * (depth // 2 + 2) + 16
    assert ids.rows() < 3 * 3_000 / 8


def test_small_batches_are_put_together(store):
    ids = Ids(store)
    for number in range(300):
        ids.send([text(number)])
    assert ids.rows() <= 12


def test_ids_are_known_for_a_week_at_least_and_then_go_piece_by_piece(store, small):
    ids = Ids(store)
    first = [f"first {number}" for number in range(100)]
    ids.send(first, NOW_MS)
    ids.send(first, NOW_MS + GENERATION_MS)
    ids.send(first, NOW_MS + GENERATION_MS - 10)  # a clock that goes back knows what is to come
    num_old = ids.rows("sum(CASE generation WHEN 3000 THEN 1 ELSE 0 END)")
    ids.plain.clear()
    ids.send(first[:50], NOW_MS + 2 * GENERATION_MS)
    left = ids.rows("sum(CASE generation WHEN 3000 THEN 1 ELSE 0 END)")
    assert num_old - left in range(1, 16 * 50)
    for batch in range(20):
        ids.send([f"{batch} {number}" for number in range(8)], NOW_MS + 2 * GENERATION_MS)
    assert ids.rows("min(generation)") == 3002


def test_memory_is_bounded_by_forgetting_what_was_written_to_longest_ago(store):
    shared = Applied(max_memory_bytes=200_000)
    many = [Ids(store) for _ in range(40)]
    for ids in many:
        ids.applied = shared
    for round_ in range(3):
        for ids in many:
            ids.send([f"{round_} {number}" for number in range(20)])
            assert shared.nbytes <= 200_000
    for ids in many:
        ids.send([f"{round_} {number}" for round_ in range(3) for number in range(20)])


@given(st.sets(st.binary(min_size=16, max_size=16), min_size=1), st.sets(st.binary(min_size=16, max_size=16)))
def test_a_page_knows_every_key_of_its_own_and_exact_comparison_no_other(own, others):
    pages = Pages()
    page = pages.new()
    mine = columns(b"".join(sorted(own)))
    pages.add(page, Probe.of(mine))
    assert list(pages.hits(page, Probe.of(mine))) == list(range(len(own)))
    asked = sorted(own | others)
    found = hits(columns(b"".join(asked)), b"".join(sorted(own)))
    assert {asked[place] for place in found} == own


def test_a_full_page_is_wrong_once_in_five_hundred_times_at_most():
    draw = random.Random(1)
    pages = Pages()
    page = pages.new()
    pages.add(page, Probe.of(columns(draw.randbytes(16 * 4096))))
    assert len(pages.hits(page, Probe.of(columns(draw.randbytes(16 * 20_000))))) < 40
