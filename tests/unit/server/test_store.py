"""The database and its one writer, on SQLite and on PostgreSQL."""

import sqlite3
import threading

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, inspect, select, text

from infra.server.refusals import Refused, StoreUnavailable, Unusable
from infra.server.store import sql
from infra.server.store.schema import ExactDouble, metadata, organisations
from infra.server.store.store import Store


@pytest.fixture
def store(address):
    store = Store(address, busy_timeout_ms=50)
    yield store
    store.close()


@pytest.fixture
def file_store(file_address):
    store = Store(file_address, busy_timeout_ms=50)
    yield store
    store.close()


@pytest.fixture
def pg_store(postgresql_address):
    store = Store(postgresql_address, busy_timeout_ms=200)
    yield store
    store.close()


@pytest.mark.parametrize("name", ["50%cent", "a?b", "a%20b"])
def test_a_database_lies_where_its_path_says_whatever_letters_it_holds(tmp_path, name):
    """`%` and `?` were read as a URL's: the file could not be opened, or was made elsewhere."""
    (tmp_path / name).mkdir()
    Store(tmp_path / name / "metrics.sqlite3", busy_timeout_ms=50).close()
    assert (tmp_path / name / "metrics.sqlite3").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def add(name):
    def work(connection):
        connection.execute(insert(organisations).values(uid=name, name=name, created_ms=1))
        return name

    return work


def names(store):
    return store.read_now(lambda connection: list(connection.execute(select(organisations.c.name)).scalars()))


@pytest.mark.filterwarnings("ignore:.*expression-based index")
def test_migrations_from_empty_give_exactly_the_schema(empty_address):
    store = Store(empty_address)
    with store.database.reads.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    store.close()


def test_indexes_over_expressions_are_those_of_the_schema(file_store, tmp_path):
    """Alembic cannot compare them, so their SQL is compared."""
    fresh = create_engine(f"sqlite:///{tmp_path / 'fresh'}")
    metadata.create_all(fresh)
    query = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name")
    with fresh.connect() as wanted, file_store.database.reads.connect() as got:
        assert wanted.execute(query).all() == got.execute(query).all()
    fresh.dispose()


def test_opening_again_migrates_nothing_and_keeps_everything(store, address):
    store.write_now(add("a"))
    again = Store(address)
    assert names(again) == ["a"]
    assert "series" in inspect(again.database.reads).get_table_names()
    again.close()


def test_a_new_database_behind_a_link_is_its_owners_alone_to_read(tmp_path):
    """The link leads to where there is no file yet, on a larger disk for example."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    Store(tmp_path / "link").close()
    assert oct((tmp_path / "file").stat().st_mode & 0o777) == "0o600"


def test_a_commit_is_flushed_to_the_disk_and_readers_do_not_wait_for_it(file_store, pg_store):
    def pragmas(connection):
        return [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        ]

    assert file_store.write_now(pragmas) == ["wal", 2]
    assert pg_store.write_now(lambda connection: sql.scalar(connection, "SHOW synchronous_commit")) == "on"


def test_requests_that_wait_share_a_commit(store):
    """The writer is held by one unit while 50 more queue up; all of them then commit together."""
    begun, held = threading.Event(), threading.Event()
    commits = []

    def hold(_connection):
        begun.set()
        assert held.wait(60)

    commit = store._writer._commit

    def counted(units):
        commits.append(len(units))
        commit(units)

    store._writer._commit = counted
    first = store._writer.submit(hold)
    assert begun.wait(60)
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
        assert held.wait(60)

    first = store._writer.submit(hold)
    assert begun.wait(60)
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


def test_a_full_disk_applies_nothing_and_the_next_write_finds_room_again(file_store, caplog):
    store = file_store
    pages = store.write_now(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar())

    def limit(connection, to):
        connection.exec_driver_sql(f"PRAGMA max_page_count = {to}")

    store.write_now(lambda connection: limit(connection, pages))
    with pytest.raises(StoreUnavailable, match="disk is full") as refused:
        store.write_now(lambda connection: [add(f"{number}" * 3000)(connection) for number in range(10)])
    assert (refused.value.status, refused.value.retryable, refused.value.retry_after_s) == (503, True, 2)
    (line,) = caplog.text.splitlines()
    assert line.endswith("nothing of it was applied: the database is not available: database or disk is full")
    assert names(store) == []
    store.write_now(lambda connection: limit(connection, 2**30))
    store.write_now(add("a"))
    assert names(store) == ["a"]


def test_a_file_that_another_process_holds_is_waited_for_and_then_unavailable(file_store):
    store = file_store
    other = sqlite3.connect(store.database.address, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.write_now(add("a"))
    other.execute("ROLLBACK")
    other.close()
    store.write_now(add("b"))
    assert names(store) == ["b"]


def test_what_is_queued_when_the_store_closes_is_committed_and_what_comes_later_refused(address):
    store = Store(address)
    pending = [store._writer.submit(add(f"{number}")) for number in range(20)]
    store.close()
    assert [one.result(0) for one in pending] == [f"{number}" for number in range(20)]
    with pytest.raises(StoreUnavailable, match="stopping"):
        store.write_now(add("late"))


AWKWARD = ["", "\x00", "\x01", "a\x00\x01\x01\x00b\x01\x02", "é\U0001f600\ufffd", "%s ? ' \\"]
"""Texts that some database or driver reads as something else."""


def test_every_text_and_every_finite_double_comes_back_as_it_was(store):
    values = [0.0, -0.0, 5e-324, -2.2e-308, 0.1, 1.7976931348623157e308]
    doubles = Table(
        "doubles", MetaData(), Column("id", Integer, primary_key=True), Column("value", ExactDouble)
    )

    def write(connection):
        doubles.create(connection)
        connection.execute(insert(doubles), [{"id": n, "value": value} for n, value in enumerate(values)])
        statement = "INSERT INTO organisations (uid, name, created_ms) VALUES (?, ?, ?)"
        sql.many(connection, statement, [(one, one, 0) for one in AWKWARD])

    store.write_now(write)
    for read in (
        lambda connection: connection.execute(select(doubles.c.value).order_by(doubles.c.id)).scalars().all(),
        lambda connection: sql.run(connection, "SELECT value FROM doubles ORDER BY id").scalars().all(),
    ):
        assert [value.hex() for value in store.read_now(read)] == [value.hex() for value in values]
    for value in AWKWARD:
        row = store.read_now(
            lambda connection, value=value: sql.one(
                connection, "SELECT name FROM organisations WHERE uid = ?", (value,)
            )
        )
        assert row.name == value


def test_texts_are_ordered_by_their_bytes(store):
    words = ["b", "A", "a", "é", "a\x00", "a\x01", "a\x02", "B", "aa"]
    for word in words:
        store.write_now(add(word))
    ordered = store.read_now(
        lambda connection: list(
            connection.execute(select(organisations.c.name).order_by(organisations.c.name)).scalars()
        )
    )
    assert ordered == sorted(words, key=str.encode)


def test_a_read_sees_one_state_of_the_database_whatever_is_committed_meanwhile(store):
    def read(connection):
        before = connection.execute(select(organisations.c.name)).all()
        store.write_now(add("a"))
        return before, connection.execute(select(organisations.c.name)).all()

    assert store.read_now(read) == ([], [])
    assert names(store) == ["a"]


def test_a_row_that_the_database_refuses_undoes_its_unit_and_nothing_else(store):
    """A second organisation of the same id, and one without a name."""
    nameless = insert(organisations).values(uid="c", created_ms=1)
    results = [
        store._writer.submit(work)
        for work in (add("a"), add("a"), lambda connection: connection.execute(nameless), add("b"))
    ]
    assert (results[0].result(30), results[3].result(30)) == ("a", "b")
    for one in results[1:3]:
        error = one.exception(30)
        assert not isinstance(error, StoreUnavailable)
    assert names(store) == ["a", "b"]


def test_a_statement_that_is_wrong_is_our_mistake_and_not_an_outage(pg_store):
    for ask in (pg_store.read_now, pg_store.write_now):
        with pytest.raises(Exception, match="no_table") as failed:
            ask(lambda connection: sql.run(connection, "SELECT 1 FROM no_table"))
        assert not isinstance(failed.value, StoreUnavailable)


def test_whoever_watches_commits_and_fails_ends_nothing(store):
    def fail(_seconds, _units, /, *, failed):
        raise ValueError(f"observed: {failed}")

    store.watch(fail)
    for name in ("a", "b"):
        assert store.write_now(add(name)) == name
    assert names(store) == ["a", "b"]


def test_what_was_remembered_is_forgotten_when_another_process_has_written(store, address):
    """Two processes in turn: each forgets once, when it finds the other's commit before its own."""
    other = Store(address)
    forgotten = []
    store._writer._forget = lambda: forgotten.append("store")
    other._writer._forget = lambda: forgotten.append("other")
    for turn, name in [(store, "a"), (store, "b"), (other, "c"), (other, "d"), (store, "e")]:
        turn.write_now(add(name))
    assert forgotten == ["store", "other", "store"]
    assert names(store) == names(other) == ["a", "b", "c", "d", "e"]
    other.close()


def test_two_processes_count_in_the_database_and_lose_no_update(store, address):
    stores = [store, Store(address)]
    store.write_now(add("0"))

    def count(connection):
        (name,) = names_in(connection)
        connection.execute(organisations.update().values(name=str(int(name) + 1)))

    def names_in(connection):
        return list(connection.execute(select(organisations.c.name)).scalars())

    def write(one):
        for _ in range(100):
            while True:
                try:
                    one.write_now(count)
                    break
                except StoreUnavailable:
                    continue  # waited 50 ms for the other: the client asks again

    threads = [threading.Thread(target=write, args=(one,)) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(store) == ["200"]
    stores[1].close()


def test_a_lock_that_another_process_keeps_is_waited_for_and_then_unavailable(pg_store):
    with psycopg.connect(pg_store.database.address) as other:
        other.execute("LOCK TABLE organisations")
        with pytest.raises(StoreUnavailable, match="lock timeout") as refused:
            pg_store.write_now(add("a"))
        other.rollback()
    assert (refused.value.status, refused.value.retry_after_s) == (503, 2)
    pg_store.write_now(add("b"))
    assert names(pg_store) == ["b"]


def test_a_connection_that_was_cut_is_made_again_by_the_next_request(pg_store, postgres):
    pg_store.write_now(add("a"))
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'slugline-metrics'"
    postgres.run(cut)
    pg_store.write_now(add("b"))
    assert names(pg_store) == ["a", "b"]

    def cut_within(connection):
        add("c")(connection)
        postgres.run(cut)
        connection.execute(select(organisations))

    with pytest.raises(StoreUnavailable, match="terminat"):
        pg_store.write_now(cut_within)
    pg_store.write_now(add("d"))
    assert names(pg_store) == ["a", "b", "d"]


def test_a_database_that_is_down_is_unavailable_and_needs_nobody_when_it_is_back(own_postgres):
    with own_postgres.database() as url:
        store = Store(url)
        store.write_now(add("a"))
        own_postgres.stop()
        for ask in (lambda: store.write_now(add("b")), lambda: names(store)):
            with pytest.raises(StoreUnavailable, match="refused") as refused:
                ask()
            assert own_postgres.password not in str(refused.value)
        own_postgres.start()
        store.write_now(add("c"))
        assert names(store) == ["a", "c"]
        store.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://u@h/d", "got mysql://"),
        ("sqlite:///x", "give a data directory"),
        ("nothing", "must be given as postgresql://"),
    ],
)
def test_only_urls_of_postgresql_are_taken(url, reason):
    with pytest.raises(Unusable, match=reason):
        Store(url)


def test_a_database_of_a_later_version_is_refused_and_left_as_it_is(store, address):
    later = "UPDATE alembic_version SET version_num = '9999'"
    store.write_now(lambda connection: sql.many(connection, later, [()]))
    with pytest.raises(Unusable, match=r"later version .*9999"):
        Store(address)
    assert store.read_now(lambda c: sql.scalar(c, "SELECT version_num FROM alembic_version")) == "9999"


def test_a_database_in_which_text_would_not_survive_is_refused(postgres):
    postgres.run("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(Unusable, match="must be encoded in UTF8, got LATIN1"):
        Store(postgres.url("latin"))


@pytest.mark.parametrize(
    ("state", "words"),
    [("53100", "No space left on device"), ("57014", "statement timeout"), ("40P01", "deadlock detected")],
)
def test_what_ails_postgresql_itself_applies_nothing_and_is_unavailable(pg_store, state, words):
    def fails(connection):
        add("undone")(connection)
        error = f"RAISE EXCEPTION '{words}' USING ERRCODE = '{state}'"
        connection.exec_driver_sql(f"DO $$ BEGIN {error}; END $$")

    with pytest.raises(StoreUnavailable, match=words):
        pg_store.write_now(fails)
    assert pg_store.write_now(add("next")) == "next"
    assert names(pg_store) == ["next"]


def test_a_file_that_became_read_only_is_unavailable_until_it_can_be_written_again(file_store):
    """As when its disk is mounted read-only after an error; what is read meanwhile is read."""

    def read_only(connection, value):
        connection.exec_driver_sql(f"PRAGMA query_only = {value}")

    file_store.write_now(add("a"))
    file_store.write_now(lambda connection: read_only(connection, "ON"))
    with pytest.raises(StoreUnavailable, match="readonly"):
        file_store.write_now(add("b"))
    assert names(file_store) == ["a"]
    with file_store.database.writes.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("PRAGMA query_only = OFF")
    file_store.write_now(add("c"))
    assert names(file_store) == ["a", "c"]
