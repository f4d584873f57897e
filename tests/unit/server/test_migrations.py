"""From earlier versions, with what they hold, to this one, on both databases."""

import hashlib
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from infra.server.store import access, applied, database, series, sessions, sql
from infra.server.store.clock import now_ms
from infra.server.store.database import Database, migrate
from infra.server.store.schema import metadata
from infra.server.store.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*expression-based index")

HASHES = [hashlib.sha256(name.encode()).digest() for name in ("key", "revoked", "token", "map")]
EXPERIMENT_UID = "5f0f2f6e-7d0f-4d3e-9a55-0d9b6b1d2a10"
ROWS: dict[str, list[dict[str, Any]]] = {
    "organisations": [{"id": 1, "uid": "o", "name": "local", "created_ms": 1}],
    "keys": [
        {"id": 1, "uid": "k1", "organisation_id": 1, "name": "first", "hash": HASHES[0], "created_ms": 1},
        {
            "id": 2,
            "uid": "k2",
            "organisation_id": 1,
            "name": "old",
            "hash": HASHES[1],
            "created_ms": 1,
            "revoked_ms": 2,
        },
    ],
    "folders": [
        {"id": 1, "uid": "f1", "organisation_id": 1, "parent_id": None, "name": "a", "created_ms": 1},
        {"id": 2, "uid": "f2", "organisation_id": 1, "parent_id": 1, "name": "é b", "created_ms": 1},
    ],
    "experiments": [
        {
            "id": 1,
            "uid": EXPERIMENT_UID,
            "organisation_id": 1,
            "folder_id": 2,
            "slug": "run",
            "description": "d",
            "meta": '{"lr":1e-3}',
            "status": "error",
            "error_message": "m",
            "error_meta": "{}",
            "created_ms": 1,
            "updated_ms": 2,
            "started_ms": 3,
            "done_ms": 4,
            "last_heartbeat_ms": 5,
            "last_event_ms": 6,
            "started_session_id": 2,
            "experiment_revision": 7,
            "series_revision": 8,
        }
    ],
    "sessions": [
        {"id": 1, "experiment_id": 1, "opened_ms": 1, "next_sequence": 0, "carried": False},
        {
            "id": 2,
            "experiment_id": 1,
            "sender": "a" * 32,
            "opened_id": 1,
            "opened_ms": 1,
            "next_sequence": 9,
            "carried": True,
        },
    ],
    "message_holes": [{"session_id": 2, "first": 3, "last": 4}],
    "applied_ids": [{"experiment_id": 1, "message_id": f"id {n}", "applied_ms": n} for n in range(3)],
    "tokens": [{"id": 1, "hash": HASHES[2], "session_id": 1, "created_ms": 1, "expires_ms": 10**15}],
    "series": [
        {
            "id": 1,
            "experiment_id": 1,
            "name": "loss",
            "metadata": '{"split":"train"}',
            "metadata_hash": HASHES[3],
            "num_points": 2,
        }
    ],
    "points": [
        {
            "series_id": 1,
            "arrival": n,
            "step": n,
            "timestamp_ms": n,
            "value": value,
            "session_id": 2,
        }
        for n, value in enumerate([-0.0, 5e-324])
    ],
    "annotations": [
        {
            "id": 1,
            "uid": "n",
            "experiment_id": 1,
            "session_id": 1,
            "text": "t",
            "meta": "{}",
            "at_ms": 1,
        }
    ],
    "lifecycle": [{"id": 1, "experiment_id": 1, "session_id": 2, "kind": "start", "at_ms": 3}],
}


def migrated_to(opened, revision):
    config = database._alembic()
    with opened.writes.connect() as connection:
        database._enforce_foreign_keys(connection, on=False)
        with connection.begin():
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
        database._enforce_foreign_keys(connection, on=True)


@pytest.fixture(params=["0001", "0002"])
def revision(request):
    """The schema of an earlier version."""
    return request.param


@pytest.fixture
def previous(empty_address, revision):
    """A database of an earlier version with a row of every kind that the first one had."""
    opened = Database(empty_address)
    migrated_to(opened, "0001")
    with opened.writes.connect() as connection, connection.begin():
        for name, rows in ROWS.items():
            for row in rows:
                values = ", ".join("?" * len(row))
                statement = f"INSERT INTO {name} ({', '.join(row)}) VALUES ({values})"
                sql.run(connection, statement, tuple(row.values()))
    migrated_to(opened, revision)
    yield opened
    opened.close()


def test_every_row_of_an_earlier_version_is_there_as_it_was(previous):
    migrate(previous)
    with previous.read() as connection:
        for name, rows in ROWS.items():
            if name not in {"points", "applied_ids"}:
                for row in rows:
                    where = " AND ".join(f"{column} = ?" for column in list(row)[:2])
                    statement = f"SELECT {', '.join(row)} FROM {name} WHERE {where}"
                    found = sql.one(connection, statement, tuple(row.values())[:2])
                    assert found is not None, (name, row)
                    assert tuple(found) == tuple(row.values()), name


def test_points_of_an_earlier_version_are_there_bit_for_bit(previous):
    migrate(previous)
    with previous.read() as connection:
        (one,) = series.of_experiment(connection, 1)
        points = series.points_of(connection, one)
    assert points.steps.tolist() == points.timestamps_ms.tolist() == [0, 1]
    assert [value.hex() for value in points.values.tolist()] == [(-0.0).hex(), (5e-324).hex()]
    assert points.sessions.tolist() == [2, 2]


def test_ids_that_an_earlier_version_applied_are_known(previous):
    migrate(previous)
    asked = [*(f"id {number}" for number in range(4)), "other"]
    with previous.read() as connection:
        for later_ms in (0, applied.GENERATION_MS):
            known = applied.Applied().known(connection, 1, asked, now_ms=now_ms() + later_ms)
            assert known == {"id 0", "id 1", "id 2"}
        assert "applied_ids" not in inspect(connection).get_table_names()


def test_the_schema_is_then_exactly_that_of_an_empty_start(previous, revision):
    assert migrate(previous) == (revision, "0003")
    with previous.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert migrate(previous) == ("0003", "0003")


def test_keys_and_tokens_of_an_earlier_version_open_what_they_did(previous):
    store = Store(previous.address)
    key = store.read_now(lambda connection: access.find_key(connection, "key"))
    assert key is not None
    assert (key.organisation.uid, key.role) == ("o", "owner"), "whoever had a key had made the organisation"
    assert store.read_now(lambda connection: access.find_key(connection, "revoked")) is None
    found = store.read_now(lambda connection: sessions.find(connection, "token", EXPERIMENT_UID, now_ms=1))
    assert found is not None
    store.close()


def test_ids_go_on_after_those_of_an_earlier_version(previous):
    """PostgreSQL counts ids in sequences of its own, which rows with ids do not move."""
    if previous.writes.dialect.name == "postgresql":
        with previous.writes.connect() as connection, connection.begin():
            for name in ("organisations", "experiments", "sessions"):
                sql.run(connection, f"SELECT setval('{name}_id_seq', (SELECT max(id) FROM {name}))")
    store = Store(previous.address)
    made = store.write_now(lambda connection: access.create_organisation(connection, "another", now_ms=1))
    assert made.id == 2
    store.close()


def test_a_migration_that_fails_leaves_the_earlier_version_as_it_was(previous, revision):
    """A table of the new version's name stands in the way of its last step."""
    with previous.writes.connect() as connection, connection.begin():
        before = set(inspect(connection).get_table_names())
        sql.run(connection, "CREATE TABLE run_log_blocks (id INTEGER)")
    with pytest.raises(Exception, match="run_log_blocks"):
        migrate(previous)
    with previous.writes.connect() as connection, connection.begin():
        sql.run(connection, "DROP TABLE run_log_blocks")
        assert sql.scalar(connection, "SELECT version_num FROM alembic_version") == revision
        assert set(inspect(connection).get_table_names()) == before
    assert migrate(previous) == (revision, "0003")
