"""What is applied of a batch: each event once, whoever made its id."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.server.limits import partition
from infra.server.refusals import Refused
from infra.server.store import blocks, removal, series
from infra.server.store.commands import Annotate, Change, Record, Records
from infra.server.store.sessions import parse_message_id, parse_message_ids
from infra.server.store.store import Store
from tests.support.series import Run

SENDERS = ("a" * 32, "b" * 32)
own = st.builds(lambda sender, number: f"{SENDERS[sender]}.{number}", st.integers(0, 1), st.integers(0, 40))
runs = st.builds(
    lambda sender, first, count: [f"{SENDERS[sender]}.{number}" for number in range(first, first + count)],
    st.integers(0, 1),
    st.integers(0, 60),
    st.integers(1, 20),
)
ids = st.one_of(
    runs, st.lists(st.one_of(own, st.sampled_from(["x", "y", "a" * 32 + ".01"])), min_size=1, max_size=12)
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("ingest") / "metrics.sqlite3")
    yield store
    store.close()


def steps_of(run, name="m"):
    one = run.series(name)
    points = run.store.read_now(lambda connection: blocks.read(connection, one.id, 0, one.num_points))
    return points.steps.tolist(), points.sessions.tolist()


@settings(max_examples=80, deadline=None)
@given(st.lists(ids, min_size=1, max_size=6), st.booleans())
def test_each_id_is_applied_once_in_order_of_arrival_also_after_a_restart(store, batches, forgets):
    run, applied = Run(store), set()
    wanted: list[tuple[int, str]] = []
    run.open()
    for message_ids in batches:
        if forgets:
            store.write_now(lambda _: store.ingest.forget())
        rows = [(len(wanted) + 100 * place, 0, 0.0) for place in range(len(message_ids))]
        assert run.write(rows, message_ids=message_ids) == {}
        for message_id, (step, _, _) in zip(message_ids, rows, strict=True):
            if message_id not in applied:
                applied.add(message_id)
                wanted.append((step, message_id))
    steps, owners = steps_of(run)
    assert steps == [step for step, _ in wanted]
    by_session: dict[int, set[str]] = {}
    for owner, (_, message_id) in zip(owners, wanted, strict=True):
        mine = parse_message_id(message_id)
        by_session.setdefault(owner, set()).add("token" if mine is None else mine[0])
    assert all(len(who) == 1 for who in by_session.values()), "a sender's points are its session's"


@given(
    st.lists(
        st.one_of(own, st.text(max_size=40), st.sampled_from(["a" * 32 + ".-1", "a" * 32 + ".²"])), min_size=1
    )
)
def test_ids_are_parsed_together_as_each_alone(message_ids):
    together = parse_message_ids(message_ids)
    alone = [parse_message_id(message_id) for message_id in message_ids]
    if together is None:
        assert None in alone or len({one[0] for one in alone if one}) > 1
    else:
        assert alone == [(together[0], number) for number in together[1]]


@pytest.mark.parametrize(("first", "count"), [(0, 1), (1, 1_000), (7, 3), (10**15 - 3, 3), (10**15 - 3, 4)])
def test_ids_that_follow_one_another_are_parsed_as_each_alone(first, count):
    message_ids = [f"{'d' * 32}.{number}" for number in range(first, first + count)]
    alone = [parse_message_id(message_id) for message_id in message_ids]
    together = parse_message_ids(message_ids)
    if together is None:
        assert None in alone
    else:
        assert [(together[0], number) for number in together[1]] == alone


def test_one_partition_too_many_costs_its_points_alone_and_is_counted(store, monkeypatch):
    monkeypatch.setattr("infra.server.store.series.MAX_PARTITIONS", 2)
    run = Run(store)
    run.open()
    before = store.counters.partitions_refused
    kinds = [partition("m", (("k", key),)) for key in "abc"] + [partition("n", ())]
    records = Records(run.ids(6), kinds, [0, 2, 1, 2, 3, 0], range(6), [0] * 6, [0.0] * 6)
    refused = run.apply(records)
    # The first two that are seen are taken: in a batch they are made in the order of its partitions.
    assert {place: refusal.code for place, refusal in refused.items()} == {
        1: "series_limit_exceeded",
        3: "series_limit_exceeded",
    }
    assert store.counters.partitions_refused - before == 2
    assert steps_of(run, "n")[0] == [4]
    assert run.apply(records) == refused or run.apply(records).keys() == refused.keys()


@pytest.mark.parametrize(
    "ids", [["x", "x", "y"], [f"{'d' * 32}.{n}" for n in (4, 4, 5)]], ids=["foreign", "own"]
)
def test_no_copy_of_a_refused_point_in_its_own_batch_is_acknowledged(store, monkeypatch, ids):
    monkeypatch.setattr("infra.server.store.series.MAX_PARTITIONS", 1)
    run = Run(store)
    run.open()
    run.write([(0, 0, 0.0)], metadata={"k": "a"})
    kinds = [partition("m", (("k", key),)) for key in "ab"]
    repeated = store.counters.repeated
    refused = run.apply(Records(ids, kinds, [1, 1, 0], range(3), [0] * 3, [0.0] * 3))
    assert refused.keys() == {0, 1}
    assert store.counters.repeated == repeated
    monkeypatch.setattr("infra.server.store.series.MAX_PARTITIONS", 2)
    assert run.apply(Records(ids, kinds, [1, 1, 0], range(3), [0] * 3, [0.0] * 3)) == {}
    assert store.counters.repeated == repeated + 2


def test_a_batch_that_is_undone_costs_what_is_remembered_of_its_own_experiment_alone(store):
    store.write_now(lambda _: store.ingest.forget())
    kept, gone = Run(store), Run(store)
    for run in (kept, gone):
        run.open()
        run.write([(step, step, 0.0) for step in range(50)])
    remembered, nbytes = dict(store.ingest.applied._experiments), store.ingest.applied.nbytes
    store.write_now(lambda connection: removal.begin(connection, gone.experiment_id, now_ms=5))
    with pytest.raises(Refused, match="was deleted"):
        gone.write([(50, 50, 0.0)])
    assert dict(store.ingest.applied._experiments) == {kept.experiment_id: remembered[kept.experiment_id]}
    assert store.ingest.applied.nbytes == nbytes - remembered[gone.experiment_id].nbytes
    assert set(store.ingest._live) == {kept.experiment_id}
    assert store.ingest._num_remembered == sum(live.size for live in store.ingest._live.values())
    assert kept.write([(50, 50, 0.0)]) == {}
    assert steps_of(kept)[0] == list(range(51))


def test_what_is_remembered_is_bounded_and_read_again_when_it_is_needed(store, monkeypatch):
    monkeypatch.setattr("infra.server.store.ingest._MAX_REMEMBERED", 40)
    store.write_now(lambda _: store.ingest.forget())
    runs = [Run(store) for _ in range(4)]
    for run in runs:
        run.open()
    ids = [f"{'e' * 32}.{2 * n}" for n in range(8)]  # with holes
    kinds = [partition("m", (("k", str(key)),)) for key in range(8)]
    for _ in range(3):
        for run in runs:
            records = Records(ids, kinds, range(8), range(8), [0] * 8, [0.0] * 8)
            assert run.apply(records) == {}
            assert (
                sum(live.size for live in store.ingest._live.values()) == store.ingest._num_remembered <= 40
            )
            assert len(store.ingest._live) < 4
    for run in runs:
        run.apply(Records(["z"], kinds[:1], [0], [8], [0], [0.0]))
        found = store.read_now(
            lambda connection, run=run: list(series.of_experiment(connection, run.experiment_id))
        )
        assert [one.num_points for one in found] == [2, *[1] * 7]
    monkeypatch.setattr("infra.server.store.ingest._MAX_REMEMBERED", 4)
    assert runs[0].apply(Records(["zz"], kinds[1:2], [0], [8], [0], [0.0])) == {}
    assert not store.ingest._live


def test_batches_in_which_nothing_is_new_take_no_memory(store):
    run = Run(store)
    run.open()
    ids = [f"again {n}" for n in range(20_000)]
    for _ in range(2):
        for first in range(0, len(ids), 1000):
            run.write([(n, 0, 0.0) for n in range(1000)], message_ids=ids[first : first + 1000])
    assert len(store.ingest.applied._hashed) <= 5_096


def test_commands_of_every_kind_are_applied_in_place(store):
    run = Run(store)
    run.open()
    sender, where = "c" * 32, partition("m", ())
    commands = [
        Change(f"{sender}.0", "start", None),
        Record(f"{sender}.1", where, 1, None, 1.5),
        Annotate(f"{sender}.2", "note", "{}", 5),
        Record("foreign", where, 2, 7, 2.5),
        Change(f"{sender}.3", "done", None),
    ]

    def apply(connection):
        return store.ingest.apply(connection, run.sessions[0], commands, now_ms=1_000)

    assert store.write_now(apply) == store.write_now(apply) == [None] * 5
    steps, owners = steps_of(run)
    assert (steps, len(set(owners))) == ([1, 2], 2)
    marks = store.ingest._live[run.experiment_id].senders[sender].marks
    assert (marks.next, marks.holes) == (4, [])


def test_a_run_that_ends_leaves_one_block_a_series(store):
    run = Run(store)
    run.open()
    for step in range(5):
        run.write([(step, 0, 0.0)])
    end = [Change("end", "done", None)]
    store.write_now(lambda connection: store.ingest.apply(connection, run.sessions[0], end, now_ms=1_000))
    layout = store.read_now(lambda connection: blocks.layout(connection, run.series().id))
    assert [block.count for block in layout] == [5]
    run.write([(5, 0, 0.0)])
    assert steps_of(run)[0] == list(range(6))
