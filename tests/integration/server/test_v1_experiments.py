"""The REST API's experiments."""

import time

import pytest

from tests.support.metrics_server import MetricsServer
from tests.support.rest import Rest


@pytest.fixture
def rest(client):
    return Rest(client)


def one(rest, experiment_id):
    return rest.ask("GET", f"/experiments/{experiment_id}")["experiment"]


def test_a_new_experiment_has_every_field(rest, server, slug):
    made = rest.experiment(slug, description="d", metadata={"a": [1.0, None, "\0"]})
    assert made == one(rest, made["id"])
    assert set(made) == {
        *("id", "org_id", "folder", "url", "slug", "display_name", "status", "quiet"),
        *("created_at_ms", "updated_at_ms", "started_at_ms", "done_at_ms", "last_heartbeat_at_ms"),
        *("last_event_at_ms", "description", "metadata", "error_name", "error_detail"),
        *("experiment_revision", "series_revision"),
    }
    assert made["url"] == f"{server.url}/dashboard/experiments/{made['id']}"
    assert (made["slug"], made["description"], made["status"]) == (slug, "d", "created")
    assert made["metadata"] == {"a": [1.0, None, "\0"]}
    assert (made["folder"], made["display_name"], made["quiet"], made["started_at_ms"]) == (
        None,
        None,
        False,
        None,
    )


def test_a_slug_that_is_there_is_continued_and_stays_where_somebody_put_it(rest, client, slug):
    folder = rest.ask("POST", "/folders", {"name": f"f-{slug}"})["folder"]
    opened = client.open(slug, description="one", meta={"a": 1})
    placed = rest.experiment(slug, description="two", metadata={"b": 2}, folder_id=folder["folder_id"])
    assert (placed["id"], placed["description"], placed["metadata"]) == (opened.id, "two", {"b": 2})
    assert placed["folder"] == folder
    assert rest.experiment(slug, folder_id=None)["folder"] == folder
    other = rest.ask("POST", "/folders", {"name": f"g-{slug}"})["folder"]
    assert rest.experiment(slug, folder_id=other["folder_id"])["folder"] == folder


def test_the_list_is_the_one_that_changed_last_first(rest, slug):
    ids = [rest.experiment(f"{slug}-{n}")["id"] for n in range(3)]
    rest.ask("POST", f"/experiments/{ids[0]}", {"status": "running"})

    def listed(**query):
        return [item["id"] for item in rest.ask("GET", "/experiments", **query)["experiments"]]

    assert listed(search=slug) == [ids[0], ids[2], ids[1]]
    assert listed(search=slug.upper()) == [ids[0], ids[2], ids[1]]
    assert listed(search=slug, limit=2) == [ids[0], ids[2]]
    assert listed(search=slug, limit=2, offset=2) == [ids[1]]
    assert listed(search=slug, status="running") == [ids[0]]
    assert listed(slug=f"{slug}-1") == [ids[1]]
    assert listed(slug=slug) == []
    assert set(ids) <= set(listed(folder="/", limit=10_000))
    assert listed(search="%" + slug) == []
    assert rest.refused("GET", "/experiments", limit=0) == (422, "invalid_request")
    for name in ("slug", "search"):
        assert listed(**{name: "é" * 200}) == []
        assert rest.refused("GET", "/experiments", **{name: "a" * 60_000}) == (422, "invalid_request")
    assert rest.refused("GET", "/experiments", folder="/nope") == (404, "folder_not_found")


def test_a_search_knows_the_cases_of_every_script(rest, slug):
    made = rest.experiment(f"{slug}-ÄÖÜ-ЖЗ")
    assert [item["id"] for item in rest.ask("GET", "/experiments", search="äöü-жз")["experiments"]] == [
        made["id"]
    ]


def test_a_status_is_told_and_a_start_clears_what_an_end_said(rest, slug):
    path = f"/experiments/{rest.experiment(slug)['id']}"
    started = rest.ask("POST", path, {"status": "running", "timestamp_ms": 1000})["experiment"]
    assert (started["status"], started["started_at_ms"], started["last_event_at_ms"]) == (
        "running",
        1000,
        1000,
    )
    assert started["last_heartbeat_at_ms"] >= started["created_at_ms"]
    failed = rest.ask(
        "POST",
        path,
        {"status": "error", "error": {"name": "ValueError", "detail": "boom: it"}, "timestamp_ms": 2000},
    )["experiment"]
    assert (failed["status"], failed["error_name"], failed["error_detail"]) == (
        "error",
        "ValueError",
        "boom: it",
    )
    assert (failed["started_at_ms"], failed["done_at_ms"]) == (1000, 2000)
    again = rest.ask("POST", path, {"status": "running", "timestamp_ms": 3000})["experiment"]
    assert (again["status"], again["error_name"], again["done_at_ms"]) == ("running", None, None)
    assert (again["started_at_ms"], again["last_event_at_ms"]) == (1000, 3000)
    done = rest.ask("POST", path, {"status": "done"})["experiment"]
    assert (done["status"], done["error_detail"]) == ("done", None)
    plain = rest.ask("POST", path, {"status": "error"})["experiment"]
    assert (plain["error_name"], plain["error_detail"]) == ("Error", "")
    assert plain["experiment_revision"] == again["experiment_revision"] + 2


def test_both_protocols_say_one_error(rest, client, slug):
    experiment = client.open(slug)
    experiment.send(experiment.event("start"))
    experiment.send(experiment.event("error", error="KeyError: 'x'", meta={"error_type": "KeyError"}))
    shown = one(rest, experiment.id)
    assert (shown["error_name"], shown["error_detail"]) == ("KeyError", "'x'")
    rest.ask(
        "POST", f"/experiments/{experiment.id}", {"status": "error", "error": {"name": "A", "detail": "b"}}
    )
    assert client.record(experiment.id)["error"] == {"message": "A: b", "meta": {"error_type": "A"}}


def test_a_status_told_with_a_key_counts_and_a_replaced_process_still_does_not(rest, client, slug):
    old = client.open(slug)
    old.send(old.event("start"))
    new = client.open(slug)
    new.send(new.event("start"))
    old.send(old.event("done"))
    assert one(rest, old.id)["status"] == "running"
    rest.ask("POST", f"/experiments/{old.id}", {"status": "done"})
    assert one(rest, old.id)["status"] == "done"
    rest.ask("POST", f"/experiments/{old.id}", {"status": "running"})
    old.send(old.event("error", error="late"))
    assert one(rest, old.id)["status"] == "running"
    new.send(new.event("done"))
    assert one(rest, old.id)["status"] == "done"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (422, "invalid_request")),
        ({"status": "created"}, (422, "invalid_request")),
        ({"status": "done", "error": {"name": "A"}}, (422, "invalid_request")),
        ({"status": "error", "error": {"name": "x" * 501}}, (422, "invalid_request")),
        ({"status": "error", "error": {"detail": "😀" * 4001}}, (422, "limit_exceeded")),
        ({"status": "done", "timestamp_ms": -1}, (422, "invalid_request")),
        ({"status": "done", "timestamp_ms": 1.5}, (422, "invalid_request")),
    ],
)
def test_a_status_that_does_not_fit_is_refused(rest, slug, body, expected):
    made = rest.experiment(slug)
    assert rest.refused("POST", f"/experiments/{made['id']}", body) == expected
    assert one(rest, made["id"]) == made


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"slug": ""}, "invalid_request"),
        ({"slug": "😀" * 101}, "limit_exceeded"),
        ({"slug": "x", "description": "😀" * 2001}, "limit_exceeded"),
        ({"slug": "x", "metadata": {"a": "x" * 65_536}}, "limit_exceeded"),
        ({"slug": "x", "metadata": []}, "invalid_request"),
        ({"slug": "\ud800"}, "invalid_request"),
        ({"slug": "x", "metadata": {"a": float("inf")}}, "invalid_event"),
    ],
)
def test_an_experiment_that_does_not_fit_is_refused(rest, body, code):
    assert rest.refused("POST", "/experiments", body) == (422, code)


def test_the_display_name_is_for_people_and_the_slug_never_changes(rest, client, slug):
    made = rest.experiment(slug)
    before = client.record(made["id"])
    named = rest.ask("PATCH", f"/experiments/{made['id']}", {"display_name": "The one"})["experiment"]
    assert (named["display_name"], named["slug"]) == ("The one", slug)
    after = client.record(made["id"])
    assert after["displayName"] == "The one"
    assert after["experimentRevision"] == before["experimentRevision"] + 1
    assert client.open(slug).id == made["id"]
    same = rest.ask("PATCH", f"/experiments/{made['id']}", {"display_name": "The one"})["experiment"]
    assert same["experiment_revision"] == named["experiment_revision"] + 1  # the open's, not the name's
    assert (
        rest.ask("PATCH", f"/experiments/{made['id']}", {"display_name": None})["experiment"]["display_name"]
        is None
    )
    for name in ("", "x" * 201, 5, "\ud800"):
        assert rest.refused("PATCH", f"/experiments/{made['id']}", {"display_name": name})[0] == 422
    assert rest.refused("PATCH", f"/experiments/{made['id']}", {}) == (422, "invalid_request")


@pytest.mark.parametrize("experiment_id", ["0b7c5a52-4a0e-4c57-9d0e-6a1f2b3c4d5e", "x", "%00", "a" * 500])
def test_what_is_not_there_is_404(rest, experiment_id):
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"status": "done"}),
        ("PATCH", "", {"folder_id": None}),
        ("DELETE", "", None),
        ("GET", "/ingestion-keys", None),
        ("POST", "/ingestion-keys", {}),
        ("DELETE", "/ingestion-keys/x", None),
        ("GET", "/annotations", None),
        ("POST", "/annotations", {"annotation": "x"}),
    ):
        refused = rest.refused(method, f"/experiments/{experiment_id}{path}", body)
        assert refused == (404, "experiment_not_found"), (method, path)


def test_a_search_finds_slugs_and_display_names_in_any_case_and_any_script(rest, slug):
    ids = [rest.experiment(f"{slug} {name}")["id"] for name in ("ÉTÉ", "nul\x00", "a_b", "axb")]
    rest.ask("PATCH", f"/experiments/{ids[3]}", {"display_name": f"{slug} Große Straße"})

    def listed(search, **more):
        found = rest.ask("GET", "/experiments", search=f"{slug} {search}", **more)["experiments"]
        return [item["id"] for item in found]

    assert listed("été") == [ids[0]]
    assert listed("NUL\x00") == [ids[1]]
    assert listed("nul\x00\x00") == []
    assert listed("A_B") == [ids[2]]
    assert listed("große") == listed("GROẞE STRASSE") == [ids[3]]
    assert rest.ask("GET", "/experiments", search="\x00", slug=f"{slug} a_b")["experiments"] == []
    rest.experiment(f"{slug} été 2")
    assert listed("été", offset=1, limit=5) == [ids[0]]
    assert len(listed("été", limit=1)) == 1


def test_a_deleted_experiment_is_gone_at_once_and_its_slug_is_free(rest, client, slug):
    experiment = client.open(slug)
    experiment.send(experiment.event("start"), *(experiment.metric("loss", 1.0, step) for step in range(100)))
    token = rest.ingestion_token(experiment.id)
    was = rest.ask("DELETE", f"/experiments/{experiment.id}")["experiment"]
    assert was["slug"] == slug
    assert rest.refused("GET", f"/experiments/{experiment.id}") == (404, "experiment_not_found")
    assert rest.refused("DELETE", f"/experiments/{experiment.id}") == (404, "experiment_not_found")
    assert experiment.post([]).status_code == 401
    ingested = rest.send("POST", f"/experiments/{experiment.id}/ingest", {"data": []}, token=token)
    assert ingested.status_code == 401
    assert (
        client.ask("query.experiment", experimentId=experiment.id)["data"]["code"] == "experiment_not_found"
    )
    missing = client.data("query.revisions", experimentIds=[experiment.id])["missingExperimentIds"]
    assert missing == [experiment.id]
    assert experiment.id not in str(client.data("foldertree.read"))
    assert rest.ask("GET", "/experiments", slug=slug)["experiments"] == []
    again = client.open(slug)
    assert again.id != experiment.id
    assert client.points(again.id) == {}


def test_all_that_a_deleted_experiment_held_goes_in_pieces_and_after_a_restart_too(tmp_path):
    from tests.support.metrics_server import MetricsClient

    server = MetricsServer(tmp_path / "data")
    server.start()
    client = MetricsClient(server.url, server.key)
    rest = Rest(client)
    ids = []
    for slug in ("a", "b", "keep"):
        experiment = client.open(slug)
        ids.append(experiment.id)
        experiment.send(
            experiment.event("start"),
            *(experiment.event("annotate", annotation=f"{n}", meta={}) for n in range(50)),
            *(experiment.metric("loss", 1.0, n, meta={"n": str(n)}) for n in range(300)),
            *(experiment.metric("loss", 1.0, n, message_id=f"foreign {slug} {n}") for n in range(300)),
            experiment.metric("gap", 1.0, 0, message_id=f"{experiment.sender}.5000"),
        )
        rest.ingestion_token(experiment.id)
    kept = client.points(ids[2])
    rest.ask("DELETE", f"/experiments/{ids[0]}")
    rest.ask("DELETE", f"/experiments/{ids[1]}")
    server.kill()
    client.close()
    server.start()
    client = MetricsClient(server.url, server.key)
    counts = _wait_until_removed(server.data)
    assert counts["experiments"] == 1
    assert counts["series"] == 302
    assert counts["annotations"] == 50
    assert counts["point_blocks"] >= 302
    assert client.points(ids[2]) == kept
    client.close()
    assert server.stop() == 0


def _wait_until_removed(data):
    import sqlite3

    deadline = time.monotonic() + 60
    while True:
        with sqlite3.connect(f"file:{data / 'metrics.sqlite3'}?mode=ro", uri=True) as database:
            (left,) = database.execute(
                "SELECT count(*) FROM experiments WHERE deleted_ms IS NOT NULL"
            ).fetchone()
            if not left:
                tables = ("experiments", "series", "annotations", "point_blocks")
                return {
                    table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables
                }
        assert time.monotonic() < deadline
        time.sleep(0.02)
