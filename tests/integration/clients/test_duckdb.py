"""The public DuckDB extension, unmodified: SQL reads back what was written, and asks only for changes."""

import datetime as dt
import json

import duckdb
import pytest

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the extension's timestamps have no zone: they are UTC

SERIES = "SELECT step, value FROM m.series WHERE experiment_slug = ? AND metric_name = 'loss' ORDER BY ALL"
ANNOTATIONS = "SELECT annotation FROM m.annotations WHERE experiment_slug = ?"
CATALOG = "SELECT metric_name FROM m.catalog WHERE experiment_slug = ? ORDER BY ALL"
STATUS = "SELECT status FROM m.experiments WHERE slug = ?"


def milliseconds(moment):
    return None if moment is None else round((moment - EPOCH) / dt.timedelta(milliseconds=1))


def rows(connection, sql, *values):
    return connection.execute(sql, values).fetchall()


@pytest.fixture
def filled(client, slug):
    """A folder in a folder with two experiments, and one at the root, with a bit of everything."""
    outer = client.data("folder.create", name=slug, parentFolderId=None)["folderId"]
    inner = client.data("folder.create", name="größe, 'x'", parentFolderId=outer)["folderId"]
    opened = []
    for number, folder in enumerate((inner, inner, None)):
        experiment = client.open(
            f"{slug}-{number}", description=f"number {number}", meta={"n": [number, "é"]}
        )
        if folder:
            client.data(
                "folderexperiment.move", experimentId=experiment.id, fromFolderId=None, toFolderId=folder
            )
        experiment.send(
            experiment.event("start", timestampMs=1_700_000_000_001),
            *[
                experiment.metric("loss", step / (number + 3), step % 300, timestampMs=step, meta=meta)
                for step in range(450)
                for meta in ({}, {"split": "train", "a": "\0'"})
            ],
            experiment.metric("acc", -0.0, 2**53 - 2),
            experiment.event("annotate", annotation="it's\0 €", meta={"step": 3}, timestampMs=5),
        )
        opened.append(experiment)
    opened[0].send(opened[0].event("done", timestampMs=1_700_000_000_009))
    opened[1].send(opened[1].event("error", error="E: bad", meta={"k": [1]}))
    return outer, inner, opened


def test_every_table_reads_back_what_the_server_has(client, attached, filled, tmp_path):
    outer, inner, opened = filled
    for connection in (attached(), attached(cache=tmp_path)):
        folders = rows(
            connection, "SELECT * FROM m.folders WHERE folder_id IN (?, ?) ORDER BY path", outer, inner
        )
        (name,) = [row[1] for row in folders if row[0] == outer]
        assert folders == [
            (outer, name, f"/{name}", None),
            (inner, "größe, 'x'", f"/{name}/größe, 'x'", outer),
        ]
        for experiment in opened:
            check_experiment(connection, client, experiment.id)


def check_experiment(connection, client, experiment_id):
    record = client.record(experiment_id)
    ((folder_id, *found),) = rows(
        connection,
        "SELECT folder_id, slug, status, description, meta, error_message, error_meta, created_at,"
        " updated_at, started_at, done_at, last_event_at FROM m.experiments WHERE id = ?",
        experiment_id,
    )
    error = record["error"] or {"message": None, "meta": None}
    assert found[:4] == [*(record[key] for key in ("slug", "status", "description")), found[3]]
    assert json.loads(found[3]) == record["meta"]
    assert found[4] == error["message"]
    assert (found[5] and json.loads(found[5])) == error["meta"]
    keys = ("createdAtMs", "updatedAtMs", "startedAtMs", "doneAtMs", "lastEventAtMs")
    assert [milliseconds(one) for one in found[6:]] == [record[key] for key in keys]
    points = rows(
        connection,
        "SELECT folder_id, metric_name, metadata, step, timestamp, value FROM m.series"
        " WHERE experiment_id = ?",
        experiment_id,
    )
    expected = [
        (folder_id, name, dict(metadata), step, at_ms, repr(value))
        for (name, metadata), of_it in client.points(experiment_id).items()
        for step, at_ms, value in of_it
    ]
    assert sorted(
        [(row[0], row[1], json.loads(row[2]), row[3], milliseconds(row[4]), repr(row[5])) for row in points],
        key=repr,
    ) == sorted(expected, key=repr)
    catalog = client.data("query.catalog", experimentId=experiment_id)["series"]
    assert {
        name: json.loads(metadata)
        for name, metadata in rows(
            connection, "SELECT metric_name, metadata FROM m.catalog WHERE experiment_id = ?", experiment_id
        )
    } == {one["seriesName"]: {each["key"]: each["values"] for each in one["metadata"]} for one in catalog}
    annotations = client.data("query.annotations", experimentId=experiment_id)["annotations"]
    assert sorted(
        (row[0], row[1], json.loads(row[2]), milliseconds(row[3]))
        for row in rows(
            connection,
            "SELECT id, annotation, meta, created_at FROM m.annotations WHERE experiment_id = ?",
            experiment_id,
        )
    ) == sorted(
        (one["annotationId"], one["annotation"], one["meta"], one["createdAtMs"]) for one in annotations
    )


def test_a_folder_is_joined_with_what_is_in_it(attached, filled):
    _, inner, _ = filled
    connection = attached()
    found = rows(
        connection,
        "SELECT e.slug, json_extract(e.meta, '$.n[0]')::INT, max(s.step), count(*) FROM m.experiments e"
        " JOIN m.series s ON s.experiment_id = e.id WHERE s.folder_id = ? AND s.metric_name = 'loss'"
        " GROUP BY ALL ORDER BY ALL",
        inner,
    )
    assert [row[1:] for row in found] == [(0, 299, 900), (1, 299, 900)]
    assert len({row[0] for row in found}) == 2


def test_a_series_of_many_frames_is_read_whole(attached, experiment):
    for first in range(0, 120_000, 1000):
        experiment.send(*[experiment.metric("loss", step + 0.5, step) for step in range(first, first + 1000)])
    connection = attached()
    assert rows(
        connection,
        "SELECT count(*), count(DISTINCT step), bool_and(value = step + 0.5) FROM m.series"
        " WHERE experiment_id = ?",
        experiment.id,
    ) == [(120_000, 120_000, True)]


@pytest.fixture
def experiment(client, slug):
    return client.open(slug)


def test_the_cache_is_stale_only_where_something_changed(proxy, attached, experiment, slug, tmp_path):
    experiment.send(experiment.metric("loss", 1.0, 1))
    neighbour = experiment.client.open(f"{slug}-neighbour")
    neighbour.send(neighbour.metric("loss", 7.0, 7))
    connection = attached(host=proxy.url, cache=tmp_path)

    def read(of=slug):
        proxy.asked()
        found = [rows(connection, sql, of) for sql in (SERIES, ANNOTATIONS, CATALOG, STATUS)]
        return found, set(proxy.asked())

    first = read()[0]
    other = read(neighbour_slug := f"{slug}-neighbour")[0]
    assert first[:1] + other[:1] == [[(1, 1.0)], [(7, 7.0)]]
    assert (read(), read(neighbour_slug)) == ((first, set()), (other, set())), "nothing is asked twice"

    def refreshed():
        proxy.asked()
        connection.execute("FROM o41_metrics_revalidate('m')")
        return set(proxy.asked())

    assert refreshed() == {"query.revisions"}, "nothing has changed"
    assert read() == (first, set())
    experiment.send(experiment.metric("loss", 2.0, 2))
    assert read() == (first, set()), "until it is asked to look"
    assert refreshed() == {"query.revisions", "query.experiments"}
    found, asked = read()
    assert (found[0], asked - {"query.catalog"}) == ([(1, 1.0), (2, 2.0)], {"query.experimentseries"})
    assert read(neighbour_slug) == (other, set())
    experiment.send(experiment.event("annotate", annotation="new"), experiment.event("start"))
    refreshed()
    found, asked = read()
    assert (found[1], found[3]) == ([("new",)], [("running",)])
    assert "query.annotations" in asked
    assert "query.experimentseries" not in asked, "no point came"
    experiment.send(experiment.metric("other", 3.0, 1))
    refreshed()
    assert read()[0][2] == [("loss",), ("other",)]
    assert refreshed() == {"query.revisions"}


def test_a_refresh_sees_folders_and_experiments_that_came_moved_and_went(
    proxy, attached, experiment, slug, tmp_path
):
    client, connection = experiment.client, attached(host=proxy.url, cache=tmp_path)
    assert rows(connection, STATUS, slug) == [("created",)]
    folder = client.data("folder.create", name=slug, parentFolderId=None)["folderId"]
    client.data("folderexperiment.move", experimentId=experiment.id, fromFolderId=None, toFolderId=folder)
    late = client.open(f"{slug}-late")
    connection.execute("FROM o41_refresh('m')")
    assert rows(connection, "SELECT folder_id FROM m.experiments WHERE slug = ?", slug) == [(folder,)]
    assert rows(connection, STATUS, f"{slug}-late") == [("created",)]
    assert (
        client.http.delete(f"/api/v1/experiments/{late.id}", headers=client.authorization).status_code == 200
    )
    connection.execute("FROM o41_refresh('m')")
    assert rows(connection, STATUS, f"{slug}-late") == []


def test_a_cache_outlives_its_attachment(proxy, attached, experiment, slug, tmp_path):
    experiment.send(experiment.metric("loss", 1.0, 1))
    rows(attached(host=proxy.url, cache=tmp_path), SERIES, slug)
    proxy.asked()
    assert rows(attached(host=proxy.url, cache=tmp_path), SERIES, slug) == [(1, 1.0)]
    assert proxy.asked() == ["foldertree.read", "query.revisions"]


def test_a_server_in_trouble_is_asked_again(proxy, attached, experiment, slug):
    experiment.send(experiment.metric("loss", 1.0, 1))
    proxy.fail("foldertree.read", 503)
    proxy.fail("query.experimentseries", 429)
    assert rows(attached(host=proxy.url), SERIES, slug) == [(1, 1.0)]


def test_a_wrong_key_is_one_error(attached):
    connection = attached(key="slk_wrong")
    with pytest.raises(duckdb.Error, match="401"):
        rows(connection, "FROM m.folders")
