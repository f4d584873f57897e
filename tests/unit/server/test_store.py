"""The database and its one writer."""

import sqlite3
import threading

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, insert, inspect, select, text

from infra.server.refusals import Refused, StoreUnavailable
from infra.server.store.schema import metadata, organisations
from infra.server.store.store import Store


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "metrics.sqlite3", busy_timeout_ms=50)
    yield store
    store.close()


def add(name):
    def work(connection):
        connection.execute(insert(organisations).values(uid=name, name=name, created_ms=1))
        return name

    return work


def names(store):
    return store.read_now(lambda connection: list(connection.execute(select(organisations.c.name)).scalars()))


@pytest.mark.filterwarnings("ignore:.*expression-based index")
def test_migrations_from_empty_give_exactly_the_schema(store):
    with store.database.reads.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_indexes_over_expressions_are_those_of_the_schema(store, tmp_path):
    """Alembic cannot compare them, so their SQL is compared."""
    fresh = create_engine(f"sqlite:///{tmp_path / 'fresh'}")
    metadata.create_all(fresh)
    query = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name")
    with fresh.connect() as wanted, store.database.reads.connect() as got:
        assert wanted.execute(query).all() == got.execute(query).all()
    fresh.dispose()


def test_opening_again_migrates_nothing_and_keeps_everything(store, tmp_path):
    store.write_now(add("a"))
    again = Store(tmp_path / "metrics.sqlite3")
    assert names(again) == ["a"]
    assert "points" in inspect(again.database.reads).get_table_names()
    again.close()


def test_a_commit_is_flushed_to_the_disk_and_readers_do_not_wait_for_it(store):
    def pragmas(connection):
        return [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        ]

    assert store.write_now(pragmas) == ["wal", 2]


def test_requests_that_wait_share_a_commit(store):
    """The writer is held by one unit while 50 more queue up; all of them then commit together."""
    begun, held = threading.Event(), threading.Event()
    commits = []

    def hold(_connection):
        begun.set()
        assert held.wait(30)

    commit = store._writer._commit

    def counted(units):
        commits.append(len(units))
        commit(units)

    store._writer._commit = counted
    first = store._writer.submit(hold)
    assert begun.wait(30)
    rest = [store._writer.submit(add(f"{number:02}")) for number in range(50)]
    held.set()
    first.result(30)
    assert [one.result(30) for one in rest] == names(store) == [f"{number:02}" for number in range(50)]
    assert sorted(commits) in ([50], [1, 50])


def test_what_is_cancelled_while_it_waits_is_not_applied_and_the_writer_goes_on(store):
    """A request that is given up at a stop cancels its future; a result for it would be an error."""
    begun, held = threading.Event(), threading.Event()

    def hold(_connection):
        begun.set()
        assert held.wait(30)

    first = store._writer.submit(hold)
    assert begun.wait(30)
    given_up = store._writer.submit(add("given up"))
    assert not first.cancel(), "it runs"
    assert given_up.cancel()
    held.set()
    assert store.write_now(add("next")) == "next"
    assert names(store) == ["next"]


def test_a_unit_that_fails_undoes_itself_and_nothing_else(store):
    def fails(connection):
        add("undone")(connection)
        raise Refused("limit_exceeded", "no")

    results = [store._writer.submit(work) for work in (add("a"), fails, add("b"))]
    with pytest.raises(Refused, match="no"):
        results[1].result(30)
    assert [results[0].result(30), results[2].result(30)] == names(store) == ["a", "b"]


def test_a_full_disk_applies_nothing_and_the_next_write_finds_room_again(store):
    pages = store.write_now(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar())

    def limit(connection, to):
        connection.exec_driver_sql(f"PRAGMA max_page_count = {to}")

    store.write_now(lambda connection: limit(connection, pages))
    with pytest.raises(StoreUnavailable, match="disk is full") as refused:
        store.write_now(lambda connection: [add(f"{number}" * 3000)(connection) for number in range(10)])
    assert (refused.value.status, refused.value.retryable, refused.value.retry_after_s) == (503, True, 2)
    assert names(store) == []
    store.write_now(lambda connection: limit(connection, 2**30))
    store.write_now(add("a"))
    assert names(store) == ["a"]


def test_a_database_that_another_process_holds_is_waited_for_and_then_unavailable(store):
    other = sqlite3.connect(store.database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.write_now(add("a"))
    other.execute("ROLLBACK")
    other.close()
    store.write_now(add("b"))
    assert names(store) == ["b"]


def test_what_is_queued_when_the_store_closes_is_committed_and_what_comes_later_refused(tmp_path):
    store = Store(tmp_path / "metrics.sqlite3")
    pending = [store._writer.submit(add(f"{number}")) for number in range(20)]
    store.close()
    assert [one.result(0) for one in pending] == [f"{number}" for number in range(20)]
    with pytest.raises(StoreUnavailable, match="stopping"):
        store.write_now(add("late"))
