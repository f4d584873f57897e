"""The REST API's way of writing points and annotations, with ingestion keys."""

import math
import struct
import time
import uuid

import pytest

from tests.support.metrics_server import MetricsClient, MetricsServer
from tests.support.rest import Rest

DAY_MS = 24 * 3_600_000


@pytest.fixture
def rest(client):
    return Rest(client)


@pytest.fixture
def made(rest, slug):
    return rest.experiment(slug)


@pytest.fixture
def ingest(rest, made):
    """Send metrics with the experiment's ingestion key and return the response."""
    token = rest.ingestion_token(made["id"])

    def send(*metrics):
        return rest.send("POST", f"/experiments/{made['id']}/ingest", {"data": metrics}, token=token)

    return send


def metric(name, value, step, **more):
    return {"client_event_id": uuid.uuid4().hex, "name": name, "value": value, "step": step, **more}


def columns(rest, experiment_id, name="loss", **more):
    query = {
        "series": [{"experimentId": experiment_id, "metricName": name}],
        "order": {"axis": "step", "direction": "asc"},
        **more,
    }
    return [batch["data"] for batch in rest.ask("POST", "/query/series", query)]


def test_the_answer_is_exactly_what_clients_expect_and_the_points_are_there(rest, client, made, ingest):
    response = ingest(
        metric("loss", 0.5, 1, timestamp_ms=1000),
        metric("loss", -0.0, None, timestamp_ms=900),
        metric("loss", 5e-324, 0),
    )
    assert response.json() == {"data": {"ok": True, "mode": "queued"}, "error": None}
    (data,) = columns(rest, made["id"])
    assert data["steps"] == [None, 0, 1]
    assert [struct.pack("<d", value) for value in data["value"]] == [
        struct.pack("<d", v) for v in (-0.0, 5e-324, 0.5)
    ]
    assert (data["timestamp"][0], data["timestamp"][2]) == (900, 1000)
    ingest(metric("unplaced", 1.0, None))
    assert [step for step, _, _ in client.points(made["id"])["loss", ()]] == [None, 0, 1]
    page = client.http.get(f"/dashboard/experiments/{made['id']}")
    assert page.status_code == 200, "points without a step are shown too"


def test_an_id_is_stored_once_in_one_batch_in_two_and_after_a_restart(tmp_path):
    server = MetricsServer(tmp_path / "data")
    server.start()
    client = MetricsClient(server.url, server.key)
    rest = Rest(client)
    one, other = rest.experiment("a"), rest.experiment("b")
    event = metric("loss", 1.0, 1)
    path = f"/experiments/{one['id']}/ingest"
    token = rest.ingestion_token(one["id"])
    rest.ask("POST", path, {"data": [event, {**event, "value": 2.0}, metric("loss", 3.0, 2)]}, token=token)
    rest.ask("POST", path, {"data": [event]}, token=rest.ingestion_token(one["id"]))
    server.kill()
    client.close()
    server.start()
    client = MetricsClient(server.url, server.key)
    rest = Rest(client)
    rest.ask("POST", path, {"data": [event]}, token=token)
    assert [data["value"] for data in columns(rest, one["id"])] == [[1.0, 3.0]]
    elsewhere = f"/experiments/{other['id']}/ingest"
    rest.ask("POST", elsewhere, {"data": [event]}, token=rest.ingestion_token(other["id"]))
    assert [data["value"] for data in columns(rest, other["id"])] == [[1.0]]
    client.close()
    assert server.stop() == 0


def test_the_ids_of_the_two_protocols_are_apart(rest, client, slug):
    experiment = client.open(slug)
    experiment.send(experiment.metric("loss", 1.0, 1, message_id="7"))
    token = rest.ingestion_token(experiment.id)
    event = metric("loss", 2.0, 2) | {"client_event_id": "7"}
    rest.ask("POST", f"/experiments/{experiment.id}/ingest", {"data": [event]}, token=token)
    assert [data["value"] for data in columns(rest, experiment.id)] == [[1.0, 2.0]]


def test_a_thousand_metrics_fit_and_one_more_does_not(rest, made, ingest):
    assert ingest(*(metric("loss", 1.0, step) for step in range(1000))).status_code == 200
    response = ingest(*(metric("more", 1.0, step) for step in range(1001)))
    assert response.status_code == 422
    assert [len(data["steps"]) for data in columns(rest, made["id"])] == [1000]
    assert columns(rest, made["id"], "more") == []
    assert ingest().status_code == 200


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (metric("loss", math.nan, 1), "invalid_event"),
        (metric("loss", math.inf, 1), "invalid_event"),
        (metric("loss", "1", 1), "invalid_request"),
        (metric("löss", 1.0, 1), "invalid_request"),
        (metric("x" * 257, 1.0, 1), "invalid_request"),
        (metric("/" * 200, 1.0, 1), "limit_exceeded"),
        (metric("loss", 1.0, 2**53 - 1), "invalid_request"),
        (metric("loss", 1.0, -1), "invalid_request"),
        (metric("loss", 1.0, 1, metadata={"k": "v" * 513}), "limit_exceeded"),
        (metric("loss", 1.0, 1, metadata={"k": 1}), "invalid_request"),
        (metric("loss", 1.0, 1, timestamp_ms=2**53), "invalid_request"),
        (metric("loss", 1.0, 1) | {"client_event_id": ""}, "invalid_request"),
        (metric("loss", 1.0, 1) | {"client_event_id": "x" * 201}, "invalid_request"),
        ("no object", "invalid_request"),
    ],
)
def test_a_bad_metric_is_named_and_the_others_are_stored(rest, made, ingest, bad, code):
    response = ingest(metric("loss", 1.0, 1), bad, metric("loss", 2.0, 2), bad)
    assert response.status_code == 422
    details = dict(part.split("=", 1) for part in response.json()["error"]["details"].split("; "))
    assert (details["code"], details["index"], details["applied"], details["refused"]) == (
        code,
        "1",
        "2",
        "2",
    )
    assert [data["value"] for data in columns(rest, made["id"])] == [[1.0, 2.0]]


def test_one_partition_too_many_is_refused_for_its_metric_alone(rest, made, ingest):
    for first in range(0, 4096, 512):
        ingest(*(metric("loss", 1.0, n, metadata={"n": str(n)}) for n in range(first, first + 512)))
    response = ingest(metric("loss", 1.0, 0, metadata={"n": "one more"}), metric("other", 1.0, 0))
    assert response.status_code == 422
    assert "code=series_limit_exceeded; index=0; applied=1; refused=1" in response.json()["error"]["details"]
    assert [data["value"] for data in columns(rest, made["id"], "other")] == [[1.0]]


def test_a_key_is_shown_once_lives_seven_days_at_most_and_its_use_is_noted(rest, made):
    path = f"/experiments/{made['id']}/ingestion-keys"
    created = rest.ask("POST", path, {"name": "nightly"})
    key = created["key"]
    assert (key["name"], key["experiment_id"]) == ("nightly", made["id"])
    assert key["expires_at_ms"] - key["created_at_ms"] == 7 * DAY_MS
    assert (key["revoked_at_ms"], key["last_used_at_ms"]) == (None, None)
    short = rest.ask("POST", path, {"ttl_ms": 1000})["key"]
    assert (short["expires_at_ms"] - short["created_at_ms"], short["name"]) == (1000, "SDK ingestion key")
    for bad in ({"ttl_ms": 0}, {"ttl_ms": 7 * DAY_MS + 1}, {"name": ""}, {"name": "x" * 201}):
        assert rest.refused("POST", path, bad) == (422, "invalid_request")
    before = time.time_ns() // 1_000_000
    rest.ask("POST", f"/experiments/{made['id']}/ingest", {"data": []}, token=created["token"])
    listed = rest.ask("GET", path)["keys"]
    assert [one["id"] for one in listed] == [short["id"], key["id"]]
    assert listed[1]["last_used_at_ms"] >= before - 60_000
    assert created["token"] not in str(listed)


def test_a_revoked_or_expired_key_is_401_and_every_other_goes_on(rest, made):
    path = f"/experiments/{made['id']}"
    first = rest.ask("POST", f"{path}/ingestion-keys", {})
    second = rest.ingestion_token(made["id"])
    revoked = rest.ask("DELETE", f"{path}/ingestion-keys/{first['key']['id']}")["key"]
    assert revoked["revoked_at_ms"] >= first["key"]["created_at_ms"]
    assert rest.ask("DELETE", f"{path}/ingestion-keys/{first['key']['id']}")["key"] == revoked
    assert rest.refused("POST", f"{path}/ingest", {"data": []}, token=first["token"]) == (401, "unauthorized")
    rest.ask("POST", f"{path}/ingest", {"data": []}, token=second)
    expired = rest.ingestion_token(made["id"], ttl_ms=1)
    time.sleep(0.01)
    assert rest.refused("POST", f"{path}/ingest", {"data": []}, token=expired) == (401, "unauthorized")
    unknown = ("DELETE", f"{path}/ingestion-keys/{uuid.uuid4()}")
    assert rest.refused(*unknown) == (404, "ingestion_key_not_found")


def test_an_ingestion_key_writes_to_its_experiment_and_does_nothing_else(rest, client, made, slug):
    token = rest.ingestion_token(made["id"])
    other = rest.experiment(slug + "-other")
    for method, path, body in (
        ("POST", f"/experiments/{other['id']}/ingest", {"data": []}),
        ("POST", f"/experiments/{other['id']}/annotations", {"annotation": "x"}),
        ("GET", f"/experiments/{made['id']}", None),
        ("GET", f"/experiments/{made['id']}/annotations", None),
        ("POST", f"/experiments/{made['id']}", {"status": "done"}),
        ("DELETE", f"/experiments/{made['id']}", None),
        ("POST", f"/experiments/{made['id']}/ingestion-keys", {}),
        ("GET", "/folders", None),
        ("POST", "/query/metric-catalog", {"experimentIds": [made["id"]]}),
    ):
        assert rest.refused(method, path, body, token=token) == (401, "unauthorized"), path
    assert rest.ask("GET", "/auth/status", token=token)["auth"]["kind"] == "ingestion_key"
    assert rest.refused("POST", f"/experiments/{made['id']}/ingest", {"data": []}) == (401, "unauthorized")


def test_what_an_ingestion_key_does_is_a_sign_of_life_and_what_readers_do_is_not(rest, made, ingest):
    path = f"/experiments/{made['id']}"
    assert made["last_heartbeat_at_ms"] is None
    rest.ask("GET", path)
    rest.ask("POST", f"{path}/annotations", {"annotation": "somebody looked"})
    assert rest.ask("GET", path)["experiment"]["last_heartbeat_at_ms"] is None
    ingest()
    heard = rest.ask("GET", path)["experiment"]
    assert heard["last_heartbeat_at_ms"] >= made["created_at_ms"]
    assert heard["last_event_at_ms"] is None
    ingest(metric("loss", 1.0, 1, timestamp_ms=5))
    assert rest.ask("GET", path)["experiment"]["last_event_at_ms"] == 5


def test_annotations_come_newest_first_within_bounds_that_are_included(rest, client, made):
    path = f"/experiments/{made['id']}/annotations"
    for at_ms in (1000, 3000, 2000):
        rest.ask("POST", path, {"annotation": f"at {at_ms}", "timestamp_ms": at_ms})

    def listed(**query):
        return [one["created_at_ms"] for one in rest.ask("GET", path, **query)["annotations"]]

    assert listed() == [3000, 2000, 1000]
    assert listed(**{"from": 2000}) == [3000, 2000]
    assert listed(**{"from": 1000, "to": 2000}) == [2000, 1000]
    assert listed(to=999) == []
    assert listed(limit=1) == [3000]
    for query in ({"from": -1}, {"to": 2**53}, {"limit": 0}, {"from": "x"}):
        assert rest.refused("GET", path, **query) == (422, "invalid_request")
    shown = client.data("query.annotations", experimentId=made["id"])["annotations"]
    assert [one["createdAtMs"] for one in shown] == [3000, 2000, 1000]


def test_an_annotation_may_carry_a_step_and_changes_the_revision(rest, client, made):
    path = f"/experiments/{made['id']}/annotations"
    before = client.record(made["id"])["experimentRevision"]
    note = rest.ask("POST", path, {"annotation": "n", "metadata": {"a": [1.5]}, "step": 7})["annotation"]
    assert (note["metadata"], note["step"]) == ({"a": [1.5], "step": 7}, 7)
    assert client.record(made["id"])["experimentRevision"] == before + 1
    by_key = rest.ask("POST", path, {"annotation": "m"}, token=rest.ingestion_token(made["id"]))["annotation"]
    assert (by_key["metadata"], by_key["step"], by_key["experiment_id"]) == ({}, None, made["id"])
    assert {one["id"] for one in rest.ask("GET", path)["annotations"]} == {note["id"], by_key["id"]}
    for body, code in (
        ({"annotation": ""}, "invalid_request"),
        ({"annotation": "😀" * 8001}, "limit_exceeded"),
        ({"annotation": "x", "metadata": {"a": "x" * 65_536}}, "limit_exceeded"),
        ({"annotation": "x", "step": -1}, "invalid_request"),
        ({}, "invalid_request"),
    ):
        assert rest.refused("POST", path, body) == (422, code)
