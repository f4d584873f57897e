"""Requests that a client may repeat under an idempotency-key."""

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from infra.server.api.app import create_app
from infra.server.store import access
from infra.server.store.store import Store
from tests.support.metrics_server import MetricsClient, MetricsServer
from tests.support.rest import Rest


@pytest.fixture
def rest(client):
    return Rest(client)


def test_the_same_request_again_is_answered_the_same_and_done_once(rest, client, slug):
    made = rest.experiment(slug)
    key = uuid.uuid4().hex
    note = {"annotation": "once"}
    path = f"/experiments/{made['id']}/annotations"
    first = rest.ask("POST", path, note, key=key)
    assert rest.ask("POST", path, note, key=key) == first
    assert rest.ask("POST", path, note, key=uuid.uuid4().hex) != first
    assert rest.ask("POST", path, note) != first
    assert len(rest.ask("GET", path)["annotations"]) == 3


def test_a_folder_is_made_once_and_a_clash_is_still_a_clash(rest, slug):
    key = uuid.uuid4().hex
    body = {"name": slug}
    first = rest.ask("POST", "/folders", body, key=key)
    assert rest.ask("POST", "/folders", body, key=key) == first
    assert rest.refused("POST", "/folders", body, key=uuid.uuid4().hex) == (409, "folder_already_exists")


@pytest.mark.parametrize("change", ["body", "path", "method"])
def test_another_request_under_the_same_key_is_refused(rest, slug, change):
    made, other = rest.experiment(slug), rest.experiment(slug + "-other")
    key = uuid.uuid4().hex
    path = f"/experiments/{made['id']}"
    rest.ask("POST", path, {"status": "running"}, key=key)
    again = {
        "body": ("POST", path, {"status": "done"}),
        "path": ("POST", f"/experiments/{other['id']}", {"status": "running"}),
        "method": ("PATCH", path, {"folder_id": None}),
    }[change]
    assert rest.refused(*again, key=key) == (422, "idempotency_key_reused")
    assert rest.ask("GET", path)["experiment"]["status"] == "running"


def test_a_refused_request_is_not_remembered(rest, slug):
    key = uuid.uuid4().hex
    body = {"slug": slug, "folder_id": f"/{slug}"}
    assert rest.refused("POST", "/experiments", body, key=key) == (404, "folder_not_found")
    rest.ask("POST", "/folders", {"name": slug})
    assert rest.ask("POST", "/experiments", body, key=key)["experiment"]["folder"]["name"] == slug


def test_a_key_that_is_no_key_is_refused(rest, slug):
    assert rest.refused("POST", "/experiments", {"slug": slug}, key="x" * 256) == (422, "invalid_request")


def test_an_answer_is_kept_over_a_restart(tmp_path):
    server = MetricsServer(tmp_path / "data")
    server.start()
    client = MetricsClient(server.url, server.key)
    made = Rest(client).ask("POST", "/experiments", {"slug": "a"}, key="k")
    client.close()
    server.kill()
    server.start()
    client = MetricsClient(server.url, server.key)
    Rest(client).experiment("a", description="newer")
    assert Rest(client).ask("POST", "/experiments", {"slug": "a"}, key="k") == made
    client.close()
    assert server.stop() == 0


def test_many_at_once_under_one_key_are_done_once_and_told_to_wait_or_the_answer(rest, server, slug):
    made = rest.experiment(slug)
    key = uuid.uuid4().hex

    def once(_):
        client = MetricsClient(server.url, server.key)
        response = Rest(client).send(
            "POST", f"/experiments/{made['id']}/annotations", {"annotation": "x"}, key=key
        )
        client.close()
        return response.status_code, response.text

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(once, range(32)))
    done = {text for status, text in answers if status == 200}
    assert len(done) == 1
    waiting = {text for status, text in answers if status != 200}
    assert all("code=idempotency_key_in_progress" in text for text in waiting)
    assert len(rest.ask("GET", f"/experiments/{made['id']}/annotations")["annotations"]) == 1


def test_while_the_first_request_runs_the_next_is_409(tmp_path):
    """The writer is held, so that the first request is still running when the second comes."""
    store = Store(tmp_path / "metrics.sqlite3")
    app = create_app(store, keyless=False)
    held, release = threading.Event(), threading.Event()

    def make_key(connection):
        organisation = access.create_organisation(connection, "o", now_ms=1)
        return access.create_key(connection, organisation.id, "k", role="member", now_ms=1)[1]

    def hold(_connection):
        held.set()
        release.wait(30)

    async def scenario():
        headers = {"authorization": f"Bearer {await store.write(make_key)}", "idempotency-key": "k"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            holding = asyncio.create_task(store.write(hold))
            await asyncio.to_thread(held.wait, 30)
            first = asyncio.create_task(client.post("/api/v1/folders", json={"name": "a"}))
            while not app.state.running:  # noqa: ASYNC110 - nothing tells when it runs
                await asyncio.sleep(0.001)
            second = await client.post("/api/v1/folders", json={"name": "a"})
            release.set()
            await holding
            return second, await first, await client.post("/api/v1/folders", json={"name": "a"})

    second, first, third = asyncio.run(scenario())
    store.close()
    assert second.status_code == 409
    assert "code=idempotency_key_in_progress" in second.json()["error"]["details"]
    assert first.status_code == 200
    assert third.json() == first.json()
    assert app.state.running == set()
