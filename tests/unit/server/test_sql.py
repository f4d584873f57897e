"""Statements that are written once for every database."""

import pytest
from sqlalchemy import create_engine

from infra.server.store import sql


@pytest.fixture
def connection():
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        sql.run(connection, "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT)")
        yield connection
    engine.dispose()


def test_values_go_in_and_come_out_by_row_by_result_and_alone(connection):
    sql.many(connection, "INSERT INTO t (word) VALUES (?)", [("a",), ("b",)])
    sql.many(connection, "INSERT INTO t (word) VALUES (?)", [])
    assert sql.scalar(connection, "INSERT INTO t (word) VALUES (?) RETURNING id", ("c",)) == 3
    row = sql.one(connection, "SELECT id, word FROM t WHERE word = ?", ("b",))
    assert row is not None
    assert (row.id, row.word) == (2, "b")
    assert [word for (word,) in sql.run(connection, "SELECT word FROM t WHERE id < ?", (3,))] == ["a", "b"]
    assert sql.one(connection, "SELECT id FROM t WHERE word = ?", ("z",)) is None
    assert sql.scalar(connection, "SELECT id FROM t WHERE word = ?", ("z",)) is None


def test_a_percent_sign_is_itself_in_either_style():
    statement = "SELECT ? WHERE word LIKE 'a%' AND id = ?"
    assert sql._in_style(statement, "qmark") == statement
    assert sql._in_style(statement, "pyformat") == "SELECT %s WHERE word LIKE 'a%%' AND id = %s"
