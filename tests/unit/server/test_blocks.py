"""Blocks: what arrived is there in order, in few rows, whatever was folded."""

import pytest
from alembic import command
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.server.store import blocks, database, series
from infra.server.store.database import Database
from infra.server.store.store import Store
from tests.support.series import Run, small_blocks

pytestmark = pytest.mark.usefixtures("small")


@pytest.fixture(scope="module")
def small():
    with small_blocks():
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("blocks") / "metrics.sqlite3")
    yield store
    store.close()


def rows_of(points):
    return list(
        zip(points.steps.tolist(), points.timestamps_ms.tolist(), points.values.tolist(), strict=True)
    )


def filled(store, sizes):
    """A run with one series that arrived in batches of these sizes, and its rows."""
    run = Run(store)
    rows: list[tuple[int, int, float]] = []
    run.open()
    for size in sizes:
        batch = [(len(rows) + at, 1_000 + len(rows) + at, float(len(rows) + at)) for at in range(size)]
        run.write(batch)
        rows += batch
    return run, rows


def layout(store, run):
    return store.read_now(lambda connection: blocks.layout(connection, run.series().id))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.data())
def test_any_stretch_of_arrivals_is_read_whatever_was_folded(store, sizes, data):
    run, rows = filled(store, sizes)
    first = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(first, len(rows)))
    points = store.read_now(lambda connection: blocks.read(connection, run.series().id, first, end))
    assert rows_of(points) == rows[first:end]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=120))
def test_a_series_is_few_rows_without_a_gap_and_chunks_have_a_summary(store, sizes):
    run, rows = filled(store, sizes)
    found = layout(store, run)
    assert [block.first for block in found] == [0, *[block.end for block in found[:-1]]]
    assert found[-1].end == len(rows) == run.series().num_points
    chunks = [block for block in found if block.count >= blocks.CHUNK_POINTS]
    assert [block.has_summary for block in found] == [block in chunks for block in found]
    assert len(found) - len(chunks) <= 3 * blocks.FAN_OUT
    for block in found:
        steps = [step for step, _, _ in rows[block.first : block.end]]
        assert (block.min_step, block.max_step) == (min(steps), max(steps))
        assert (block.min_ms, block.max_ms) == (min(steps) + 1_000, max(steps) + 1_000)


@pytest.mark.parametrize("batch", [1, 10, 1000])
def test_a_point_is_written_a_few_times_in_all_whatever_the_size_of_batches(batch, monkeypatch):
    """A single point in each batch, as of a metric once a second, used to be written two thousand times."""
    monkeypatch.setattr(blocks, "CHUNK_POINTS", 4096)
    monkeypatch.setattr(blocks, "FAN_OUT", 16)
    extents: list[blocks.Extent] = []
    written = most = 0
    for first in range(0, 3 * 4096, batch):
        extents.append(blocks.Extent(first, first + batch))
        written += batch
        if num_folded := blocks._due(extents):
            folded = blocks.Extent(extents[-num_folded].first, extents[-1].end)
            written += folded.num_points
            del extents[-num_folded:]
            extents += [folded] if folded.num_points < 4096 else []
        most = max(most, len(extents))
    assert written <= 5 * 3 * 4096
    assert most <= 3 * 16


def test_a_fold_whose_commit_fails_did_not_happen_and_the_next_one_does(store):
    run, _ = filled(store, [1] * 3)
    before = layout(store, run)

    def fails(connection):
        records = run.ids(1), [(9, 9, 9.0)]
        run_fold(connection, *records)
        raise RuntimeError("the commit fails")

    def run_fold(connection, message_ids, batch):
        blocks.add(connection, [(run.series().id, 3, series.Points(*_columns(batch)))])
        extents = blocks.tail(connection, run.series().id)
        assert blocks.fold(connection, run.series().id, extents)
        assert len(extents) == 1

    with pytest.raises(RuntimeError):
        store.write_now(fails)
    assert layout(store, run) == before
    run.write([(3, 3, 3.0)])
    assert [block.count for block in layout(store, run)] == [4]


def _columns(batch):
    from infra.server.store.points import points

    made = points(*zip(*[(*row, 1) for row in batch], strict=True))
    return made.steps, made.timestamps_ms, made.values, made.sessions


def test_what_the_writer_remembers_of_a_series_is_read_again_after_a_restart(tmp_path):
    store = Store(tmp_path / "metrics.sqlite3")
    run, rows = filled(store, [3] * 5)
    store.close()
    again = Store(tmp_path / "metrics.sqlite3")
    run.store = again
    batch = [(100 + at, 100, 1.0) for at in range(70)]
    run.write(batch)
    points = again.read_now(lambda connection: series.points_of(connection, run.series()))
    assert rows_of(points) == rows + batch
    again.close()


def test_reading_a_series_looks_at_its_own_rows_only(store):
    """So it does not slow down as other series grow."""
    run, _ = filled(store, [5])
    plan = store.read_now(
        lambda connection: connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT first, data FROM point_blocks WHERE series_id = ? AND first < ?"
            " AND first >= 0 ORDER BY first",
            (run.series().id, 5),
        ).fetchall()
    )
    (row,) = plan
    assert row.detail.startswith("SEARCH point_blocks USING INDEX ")
    assert row.detail.endswith(" (series_id=? AND first>? AND first<?)")


def test_the_points_of_the_first_version_move_into_blocks(tmp_path):
    old = Database(tmp_path / "metrics.sqlite3")
    config = database._alembic()
    with old.writes.connect() as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        run = connection.exec_driver_sql
        run("INSERT INTO organisations VALUES (1, 'o', 'o', 1)")
        run(
            "INSERT INTO experiments (id, uid, organisation_id, slug, description, meta, status, created_ms,"
            " updated_ms, experiment_revision, series_revision)"
            " VALUES (1, 'e', 1, 's', '', '{}', 'created', 1, 1, 1, 1)"
        )
        for series_id, num_points in ((1, 70), (2, 1)):
            run(
                "INSERT INTO series VALUES (?, 1, ?, '{}', x'00', ?)",
                (series_id, f"m{series_id}", num_points),
            )
            values = [
                (series_id, at, 2 * at, 1_000 + at, -0.0 if at == 0 else at + 0.5) for at in range(num_points)
            ]
            run("INSERT INTO points VALUES (?, ?, ?, ?, ?, 7)", values)
    old.close()
    store = Store(tmp_path / "metrics.sqlite3")

    def read(connection):
        return {
            one.name: (one.num_points, series.points_of(connection, one))
            for one in series.of_experiment(connection, 1)
        }

    found = store.read_now(read)
    count, points = found["m1"]
    assert count == 70
    assert rows_of(points) == [(2 * at, 1_000 + at, at + 0.5 if at else 0.0) for at in range(70)]
    assert points.values[0].hex() == "-0x0.0p+0"
    assert points.sessions.tolist() == [7] * 70
    assert rows_of(found["m2"][1]) == [(0, 1_000, -0.0)]
    last = store.read_now(lambda connection: series.last_points(connection, 1, limit=9))
    assert [(one["name"], one["step"], one["value"]) for one in last] == [("m1", 138, 69.5), ("m2", 0, 0.0)]
    store.close()
