"""Health, readiness and what Prometheus reads."""

import asyncio
import re
import sqlite3
import threading

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from infra.server.api.health import Readiness
from infra.server.refusals import StoreUnavailable
from infra.server.store.store import Store
from tests.support.metrics_server import MetricsClient, running_server
from tests.support.rest import Rest


@pytest.fixture
def store(file_address):
    store = Store(file_address, busy_timeout_ms=50)
    yield store
    store.close()


def numbers(text):
    """What Prometheus would read: (name, labels) -> value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_both_answer_without_a_key(client):
    for path in ("/healthz", "/readyz"):
        response = client.http.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_a_database_that_another_holds_is_not_ready_and_the_process_is_still_well(tmp_path):
    with running_server(tmp_path / "data") as server:
        with sqlite3.connect(server.data / "metrics.sqlite3", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            assert httpx.get(f"{server.url}/healthz", timeout=60).status_code == 200
            refused = httpx.get(f"{server.url}/readyz", timeout=60)
            other.execute("ROLLBACK")
        other.close()
        assert refused.status_code == 503
        assert "locked" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) > 0
        assert asyncio.run(_ready_again(server.url))


async def _ready_again(url):
    """Ask until it is; what was found is kept for a second."""
    async with asyncio.timeout(60), httpx.AsyncClient(timeout=60) as client:
        while True:
            if (await client.get(f"{url}/readyz")).status_code == 200:
                return True
            await asyncio.sleep(0.05)


def test_however_often_it_is_asked_the_database_is_written_once_a_while(store):
    commits = []
    store.watch(lambda _seconds, _units, *, failed: commits.append(failed))

    async def ask():
        readiness = Readiness(store, kept_s=60)
        await asyncio.gather(*(readiness.check() for _ in range(50)))

    asyncio.run(ask())
    assert commits == [False]


def test_a_writer_that_does_not_answer_is_not_ready(store):
    held, release = threading.Event(), threading.Event()

    def hold(_connection):
        held.set()
        release.wait(30)

    async def ask():
        holding = asyncio.create_task(store.write(hold))
        await asyncio.to_thread(held.wait, 30)
        try:
            with pytest.raises(StoreUnavailable, match=r"cannot be written within 0\.05 s"):
                await Readiness(store, patience_s=0.05).check()
        finally:
            release.set()
            await holding

    asyncio.run(ask())


def test_prometheus_reads_what_happened_and_no_name_of_anything(tmp_path):
    with running_server(tmp_path / "data") as server:
        client = MetricsClient(server.url, server.key)
        experiment = client.open("a-secret-slug")
        events = [experiment.metric("a-secret-metric", 1.0, step) for step in range(10)]
        experiment.send(*events)
        experiment.send(*events, experiment.metric("bad", 1.0, -1))
        Rest(client).refused("GET", "/experiments/not-there")
        client.http.get("/no/such/page")
        client.http.request("BREW", "/healthz")
        text = client.http.get("/metrics").text
        found = numbers(text)
        name = "slugline_metrics_"

        def value(what, **labels):
            return found[name + what, tuple(sorted(labels.items()))]

        assert value("points_added") == value("points") == 10
        assert value("points_repeated") == 10
        assert value("experiments") == 1
        assert value("events_total", outcome="applied") == 1 + 10 + 10
        assert value("events_total", outcome="limit_exceeded") == 1
        path = "/api/v1/experiments/{experiment_id}"
        assert value("requests_total", method="GET", route=path, status="404") == 1
        assert value("requests_total", method="GET", route="none", status="404") == 1
        batches = {"method": "POST", "route": "/api/v2/experiments/{experiment_id}/events"}
        assert value("requests_total", status="200", **batches) == 2
        assert value("request_seconds_count", **batches) == 2
        assert value("commit_seconds_count") >= 3
        assert value("commit_units_sum") >= 3
        assert value("commits_failed_total") == 0
        assert value("queue_depth") == 0
        assert value("database_bytes") > 50_000
        assert "process_resident_memory_bytes" in text
        for secret in (
            "a-secret",
            experiment.id,
            experiment.token,
            client.key,
            "not-there",
            "BREW",
            "no/such",
        ):
            assert secret not in text
        client.close()


def test_whoever_is_not_at_the_machine_needs_a_key_for_the_numbers(client):
    elsewhere = {"x-forwarded-for": "192.0.2.1"}
    assert client.http.get("/metrics").status_code == 200
    assert client.http.get("/metrics", headers=elsewhere).status_code == 401
    assert client.http.get("/metrics", headers={**elsewhere, **client.authorization}).status_code == 200
    viewer = client.http.post(
        "/api/v1/keys", json={"name": "prometheus", "role": "viewer"}, headers=client.authorization
    )
    (secret,) = re.findall(r"slk_[\w-]+", viewer.text)
    again = client.http.get("/metrics", headers={**elsewhere, "authorization": f"Bearer {secret}"})
    assert again.status_code == 200
