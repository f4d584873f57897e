"""A run's points in the store: once each, in order, read as lines from anywhere, on both databases."""

import random
import threading
import uuid

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from infra.server.refusals import Refused
from infra.server.store import deflated, experiments, removal, runs, sql, telemetry
from infra.server.store.store import Store
from runtime.telemetry import rules
from tests.support.run_points import POINTS, lines_of, new_run, summary_of


class Tail:
    """Sends points of a run and knows nothing but what the store answers."""

    def __init__(self, store, run):
        self.store, self.run = store, run

    def row(self):
        return self.store.read_now(lambda connection: runs.find(connection, *self.run))

    def send(self, points, *, after_seq, attempt=1, dropped=None, cursor=None):
        batch = telemetry.batch_of(points, after_seq=after_seq, dropped=dropped or {}, cursor=cursor)

        def work(connection):
            row = runs.find(connection, *self.run)
            runs.fence(connection, row, attempt, now_ms=1)
            return telemetry.append(connection, row, batch)

        return self.store.write_now(work)

    def read(self, after=0, last=None):
        row = self.row()
        last = row.last_seq if last is None else last
        parts = telemetry.parts(self.store.read_now, row.id, after=after, last=last)
        return b"".join(deflated.unpack(part.data) for part in parts)


@pytest.fixture
def store(address):
    store = Store(address)
    yield store
    store.close()


@pytest.fixture
def file_store(file_address):
    store = Store(file_address)
    yield store
    store.close()


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(telemetry, "BLOCK_BYTES", 400)
    monkeypatch.setattr(telemetry, "_FAN_OUT", 3)
    monkeypatch.setattr(telemetry, "_READ_AT_ONCE", 2)


def test_whatever_is_sent_again_or_late_the_points_are_those_of_a_list(file_store, small_blocks):
    class Machine(RuleBasedStateMachine):
        """The list is the model; a batch that the list would not take must be refused with the cursor."""

        def __init__(self):
            super().__init__()
            self.tail = Tail(file_store, new_run(file_store, slug=str(uuid.uuid4())))
            self.points, self.sent = [], []

        @rule(points=POINTS, number=st.integers(0, 9))
        def send(self, points, number):
            said = {"dropped": {"not_json": number}, "cursor": f'{{"n":{number}}}'}
            self.sent.append((len(self.points), points))
            last = self.tail.send(points, after_seq=len(self.points), **said)
            self.points += points
            assert last == len(self.points)

        @precondition(lambda self: any(points for _, points in self.sent))
        @rule(data=st.data())
        def send_again(self, data):
            after_seq, points = data.draw(st.sampled_from([one for one in self.sent if one[1]]))
            with pytest.raises(Refused) as refused:
                self.tail.send(points, after_seq=after_seq, cursor='{"old":1}')
            assert refused.value.code == "seq_moved"
            assert refused.value.stored["last_seq"] == len(self.points)

        @rule(after_seq=st.integers(1, 50), points=POINTS)
        def send_with_a_gap(self, after_seq, points):
            with pytest.raises(Refused):
                self.tail.send(points, after_seq=len(self.points) + after_seq)

        @rule(data=st.data())
        def read_a_part(self, data):
            after = data.draw(st.integers(0, len(self.points)))
            last = data.draw(st.integers(after, len(self.points)))
            assert self.tail.read(after, last) == lines_of(self.points[after:last], first=after + 1)

        @invariant()
        def all_is_there(self):
            row = self.tail.row()
            standing = telemetry.standing(row)
            assert row.summary == telemetry._text(summary_of(self.points))
            assert standing["points"] == standing["last_seq"] == len(self.points)
            assert self.tail.read() == lines_of(self.points)

    Machine.TestCase.settings = settings(
        max_examples=12,
        stateful_step_count=15,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    Machine.TestCase().runTest()


def test_one_point_at_a_time_the_blocks_are_few_and_each_point_was_packed_a_few_times(
    file_store, monkeypatch
):
    packed = [0]

    def counting(text, pack=deflated.pack):
        packed[0] += len(text)
        return pack(text)

    monkeypatch.setattr(deflated, "pack", counting)
    monkeypatch.setattr(telemetry, "BLOCK_BYTES", 16 * 1024)
    monkeypatch.setattr(telemetry, "_FAN_OUT", 6)
    tail = Tail(file_store, new_run(file_store))
    points = [{"step": step, "loss": 1 / (step + 1)} for step in range(600)]

    def send_each(connection):
        for step, point in enumerate(points):
            row = runs.find(connection, *tail.run)
            batch = telemetry.batch_of([point], after_seq=step, dropped={}, cursor=None)
            telemetry.append(connection, row, batch)

    file_store.write_now(send_each)
    text = lines_of(points)
    assert tail.read() == text
    num_blocks = file_store.read_now(
        lambda connection: sql.scalar(connection, "SELECT count(*) FROM telemetry_blocks")
    )
    assert num_blocks < len(text) / (16 * 1024) + 3 * 6
    assert packed[0] < 5 * len(text)


def test_of_many_tails_that_send_at_once_every_point_is_stored_once_and_in_order(store):
    """Each sends the same file, as tails of one attempt would that do not know of one another.

    Over PostgreSQL they do it through three servers.
    """
    file = [{"step": step} for step in range(120)]
    run = new_run(store)
    others = (
        [Store(store.database.address) for _ in range(2)] if isinstance(store.database.address, str) else []
    )
    stores = [store, *others]
    start = threading.Barrier(6)
    problems = []

    def follow(number):
        tail, draw = Tail(stores[number % len(stores)], run), random.Random(number)
        start.wait()
        at = 0
        while at < len(file):
            batch = file[at : at + draw.randint(1, 9)]
            try:
                at = tail.send(batch, after_seq=at)
            except Refused as refused:
                if refused.code != "seq_moved":
                    problems.append(refused)
                    return
                at = refused.stored["last_seq"]

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert Tail(store, run).read() == lines_of(file)
    for other in others:
        other.close()


def test_a_run_is_found_by_its_name_without_a_look_at_others(file_store):
    """Every batch begins with it, so batches do not slow down as runs grow in number."""
    new_run(file_store)
    plan = file_store.read_now(
        lambda connection: connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {runs.by_name().compile(connection)}", (1, 1, "run")
        ).fetchall()
    )
    assert "SEARCH experiments USING INDEX" in plan[0].detail
    assert plan[0].detail.endswith("(organisation_id=? AND slug=?)")


def test_an_attempt_that_was_replaced_adds_nothing(store):
    tail = Tail(store, new_run(store))
    tail.send([{"a": 1}], after_seq=0, attempt=1)
    tail.send([{"a": 2}], after_seq=1, attempt=2)
    with pytest.raises(Refused, match="attempt 1 of this run was replaced by attempt 2"):
        tail.send([{"a": 3}], after_seq=2, attempt=1)
    assert tail.read() == lines_of([{"a": 1}, {"a": 2}])
    assert tail.row().attempts == "[[1,0,1],[2,1,1]]"


def test_a_refused_batch_leaves_neither_points_nor_an_attempt(store):
    tail = Tail(store, new_run(store))
    with pytest.raises(Refused):
        tail.send([{"a": 1}], after_seq=5, attempt=3)
    row = tail.row()
    assert (row.attempt, row.last_seq, row.attempts) == (0, 0, "[]")


def test_a_run_takes_its_last_point_and_no_more(file_store, monkeypatch):
    monkeypatch.setattr(rules, "MAX_RUN_POINTS", 5)
    monkeypatch.setattr(rules, "MAX_RUN_KEYS", 2)
    tail = Tail(file_store, new_run(file_store))
    tail.send([{"a": 1}] * 4, after_seq=0)
    with pytest.raises(Refused, match="at most 5 points, this batch would make 6"):
        tail.send([{"a": 1}] * 2, after_seq=4)
    with pytest.raises(Refused, match="at most 2 keys, this batch would make 3"):
        tail.send([{"b": 1, "c": 1}], after_seq=4)
    assert tail.send([{"b": 1}], after_seq=4) == 5
    assert tail.send([], after_seq=5, dropped={"too_many_points": 7}) == 5
    assert telemetry.standing(tail.row())["dropped"] == {"too_many_points": 7}


def test_large_points_make_blocks_of_a_bounded_size(file_store):
    point = {"k" * 60 + str(number): 1.5 for number in range(64)}
    tail = Tail(file_store, new_run(file_store))
    tail.send([point] * 200, after_seq=0)
    assert tail.read() == lines_of([point] * 200)
    largest = file_store.read_now(
        lambda connection: sql.scalar(connection, "SELECT max(size) FROM telemetry_blocks")
    )
    assert largest < telemetry.BLOCK_BYTES + len(lines_of([point], first=200))


def test_what_arrives_meanwhile_and_what_is_folded_does_not_disturb_a_reader(store, small_blocks):
    tail = Tail(store, new_run(store))
    points = [{"step": step} for step in range(60)]
    for step in range(40):
        tail.send(points[step : step + 1], after_seq=step)
    row = tail.row()
    found = b""
    for place, part in enumerate(telemetry.parts(store.read_now, row.id, after=3, last=38)):
        found += deflated.unpack(part.data)
        if place < 20:
            tail.send(points[40 + place : 41 + place], after_seq=40 + place)
    assert found == lines_of(points[3:38], first=4)


def test_a_run_goes_with_its_experiment_and_its_name_is_free_at_once(store):
    organisation_id, uid = run = new_run(store)
    tail = Tail(store, run)
    for step in range(40):
        tail.send([{"a": step}], after_seq=step)

    def delete(connection):
        row = runs.find(connection, *run)
        removal.begin(connection, row.experiment_id, now_ms=2)

    store.write_now(delete)
    with pytest.raises(Refused, match="no run has the name or the id"):
        tail.send([{"a": 1}], after_seq=40)
    again = Tail(store, new_run(store))
    assert again.run != run
    again.send([{"b": 1}], after_seq=0)
    while store.write_now(removal.step):
        pass
    left = store.read_now(
        lambda connection: [
            sql.scalar(connection, f"SELECT count(*) FROM {table}")
            for table in ("runs", "telemetry_states", "telemetry_blocks", "experiments")
        ]
    )
    assert left == [1, 1, 1, 1]
    assert again.read() == lines_of([{"b": 1}])
    assert store.read_now(
        lambda connection: experiments.listed(connection, organisation_id, slug="run", limit=9)[0].uid != uid
    )
