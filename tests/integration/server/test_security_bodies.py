"""Large, compressed, slow and unwanted bodies, against the application behind the real protocol."""

import asyncio
import gc
import gzip
import json
import select
import socket
import threading
import uuid
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import httpx
import pytest
from fastapi import Request
from starlette.responses import StreamingResponse

from infra.server.api import batches, org_events
from infra.server.api.app import create_app
from infra.server.api.body import LARGE_BYTES, MAX_BODY_BYTES, BodyBudget
from infra.server.api.streaming import Streamed, Turns
from infra.server.patience import Patience, PatientProtocol
from infra.server.store import access
from infra.server.store.store import Store
from tests.support.metrics_server import MetricsClient
from tests.support.rest import Rest
from tests.support.served_app import served
from tests.support.waiting import wait_until

SILENCE_S = 0.4
OPEN = [{"messageId": "0", "event": "syvain.v2.foldertree.read", "data": {}}]


class HastyProtocol(PatientProtocol):
    headers_s = SILENCE_S
    unread_s = SILENCE_S


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two applications over one store: ours, and one that waits less long for a client than ours does.

    Whatever is not about waiting is asked of ours: on a busy machine anybody is silent for half a second.
    """
    store = Store(tmp_path_factory.mktemp("bodies") / "metrics.sqlite3")

    def first(connection):
        organisation = access.create_organisation(connection, "ours", now_ms=0)
        return access.create_key(connection, organisation.id, "k", role="owner", now_ms=0)[1]

    key = store.write_now(first)
    ours, hasty = streaming_app(store), streaming_app(store)
    hasty.add_middleware(Patience, silence_s=SILENCE_S, grace_s=3 * SILENCE_S)
    with served(ours) as url, served(hasty, HastyProtocol) as hasty_url:
        clients = MetricsClient(url, key), MetricsClient(hasty_url, key)
        yield (ours, clients[0]), (hasty, clients[1])
        for client in clients:
            client.close()
    store.close()


def streaming_app(store):
    """An application with two addresses whose answers never end."""
    app = create_app(store, keyless=False)
    app.state.closed = threading.Event()

    @app.get("/endless")
    async def endless():
        async def lines():
            try:
                while True:
                    yield bytes(2**20)
                    await asyncio.sleep(0)
            finally:
                app.state.closed.set()

        return StreamingResponse(lines())

    @app.get("/lines")
    async def many_lines(request: Request):
        def lines():
            try:
                while True:
                    yield bytes(2**20)
            finally:
                app.state.closed.set()

        return Streamed(request, lines(), media_type="text/plain")

    return app


@pytest.fixture
def client(world):
    return world[0][1]


@pytest.fixture
def app(world):
    return world[0][0]


@pytest.fixture
def hasty(world):
    """A client of the application that waits for nobody."""
    return world[1][1]


@pytest.fixture
def hasty_app(world):
    return world[1][0]


def head(client, path, length, *more, key=True):
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {length}", *more]
    if key:
        lines.append(f"authorization: Bearer {client.key}")
    return "\r\n".join([*lines, "", ""]).encode()


def connected(client):
    url = client.http.base_url
    return closing(socket.create_connection((url.host, url.port), timeout=60))


@contextmanager
def answered(client, request):
    """A connection that has asked, and the begin of its answer.

    One that was silent too long before it asked, as happens on a busy machine, is followed by another.
    """
    for _ in range(60):
        with connected(client) as connection:
            with suppress(ConnectionError):
                connection.sendall(request)
            begin = b""
            with suppress(ConnectionError):
                begin = connection.recv(65536)
            if begin:
                yield connection, begin
                return
    pytest.fail("nobody was answered in sixty tries")


def received(connection):
    """Everything until the server closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def answers(client):
    """Whether it serves, also where this client was too slow for it at times."""

    def serves():
        with suppress(httpx.TransportError):
            return client.post(OPEN).status_code == 200
        return False

    return wait_until(serves, within_s=60, poll_s=0.01)


def wait_until_all_is_free(app):
    """What clients that went away had sent is let go of as soon as the server sees that they did."""
    wait_until(lambda: app.state.body_budget._free_bytes == 512 * 2**20, within_s=60, poll_s=0.01)


# ---------------------------------------------------------------- slow clients


def test_headers_that_do_not_come_in_time_close_the_connection(hasty):
    with connected(hasty) as silent, connected(hasty) as halfway:
        halfway.sendall(b"POST /api/v2/events HTTP/1.1\r\nhost: x\r\n")
        assert answers(hasty)
        assert received(silent) == received(halfway) == b""


def test_headers_of_a_second_request_that_do_not_come_in_time_close_the_connection(hasty):
    with answered(hasty, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n") as (connection, begin):
        assert begin.startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /heal")
        assert received(connection) == b""


def test_bodies_that_fell_silent_hold_nobody_up(client, app, slug):
    """More of them than there are worker threads, and the writer writes on."""
    experiment = client.open(slug)
    with ExitStack() as stack:
        waiting = [stack.enter_context(connected(client)) for _ in range(100)]
        for connection in waiting:
            connection.sendall(head(client, "/api/v2/events", 1000) + b"[")
        experiment.send(experiment.metric("m", 1.0, 1))
        assert client.record(experiment.id)["seriesRevision"] == 1
        assert select.select(waiting, [], [], 0)[0] == [], "the hundred in front of it are heard out still"
    wait_until_all_is_free(app)


def test_a_body_that_falls_silent_is_answered_with_408(hasty):
    with answered(hasty, head(hasty, "/api/v2/events", 1000) + b"[") as (connection, begin):
        answer = begin + received(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"code=request_timeout" in answer
    assert b"connection: close" in answer.lower()


def test_a_body_that_drips_is_answered_with_408_however_long_it_says_it_is(hasty):
    with connected(hasty) as connection:
        connection.sendall(head(hasty, "/api/v2/events", 10**6))
        connection.settimeout(SILENCE_S / 8)
        answer = b""
        for _ in range(200):
            connection.sendall(b"[")
            try:
                answer = connection.recv(65536)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408")


def test_an_answer_that_nobody_reads_is_broken_off(hasty, hasty_app):
    with answered(hasty, b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n") as (connection, _):
        assert hasty_app.state.closed.wait(60)
        assert received(connection) != b""  # and no more than was on its way
    assert answers(hasty)


# ---------------------------------------------------------------- who may send one


@pytest.mark.parametrize("ends", ["client goes", "nobody reads"])
def test_what_a_stream_holds_is_let_go_of_as_soon_as_it_ends(hasty, hasty_app, ends):
    """Without the garbage collector, which may come much later."""
    hasty_app.state.closed.clear()
    gc.disable()
    try:
        with answered(hasty, b"GET /lines HTTP/1.1\r\nhost: x\r\n\r\n") as (connection, _):
            if ends == "client goes":
                connection.close()
            assert hasty_app.state.closed.wait(60)
    finally:
        gc.enable()


def test_only_so_many_answers_are_streamed_at_once(client, app):
    turns, app.state.streams = app.state.streams, Turns(1, patience_s=0.05)
    app.state.closed.clear()
    experiment = client.open("streamed")
    try:
        with connected(client) as connection:
            connection.sendall(b"GET /lines HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(65536)
            refused = client.http.get("/lines")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            assert "code=unavailable" in refused.json()["error"]["details"]
        assert app.state.closed.wait(60)
        assert len(client.stream(experiment.id, seriesNames=["m"])) == 2
    finally:
        app.state.streams = turns


def test_only_so_many_panels_are_drawn_at_once(client, app):
    """Each takes seconds of a core and hundreds of MiB of a run with as many points as it may have."""
    rest = Rest(client)
    rest.ask("POST", "/runs", {"slug": "drawn"})
    turns, app.state.drawings = app.state.drawings, Turns(0, patience_s=0.05)
    try:
        refused = rest.send("GET", "/runs/drawn/telemetry/panels")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    finally:
        app.state.drawings = turns
    assert rest.ask("GET", "/runs/drawn/telemetry/panels")["panels"] == []


def test_a_layout_that_takes_long_to_read_keeps_nobody_waiting(client):
    """tomllib's time grows with the parts of a table's name and those of each key in it."""
    slow = f"[{'.'.join('a' * 1000)}]\n" + "\n".join(f"{'.'.join('b' * 300)}.c{at}=1" for at in range(100))
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(Rest(client).send, "POST", "/runs/check", {"telemetry": slow})
        others = 0
        while not answer.done():
            assert client.http.get("/healthz").status_code == 200
            others += 1
        assert answer.result().status_code == 400
    assert others > 20


def test_nothing_is_read_of_the_body_of_somebody_who_is_not_known(client):
    with connected(client) as connection:
        connection.sendall(head(client, "/api/v2/events", MAX_BODY_BYTES, key=False))
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")


def test_expect_100_continue_is_answered_at_once_and_not_where_the_answer_is_no(client):
    body = json.dumps([{**OPEN[0], "padding": "x" * 2000}]).encode()
    with connected(client) as connection:
        connection.sendall(head(client, "/api/v2/events", len(body), "expect: 100-continue"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    with connected(client) as connection:
        connection.sendall(head(client, "/api/v2/events", len(body), "expect: 100-continue", key=False))
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")


# ---------------------------------------------------------------- how large it may be


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(client):
    with connected(client) as connection:
        connection.sendall(head(client, "/api/v2/events", MAX_BODY_BYTES + 1))
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"code=body_too_large" in answer


@pytest.mark.parametrize("path", ["/api/v1/auth/sign-in", "/sign-in", "/sign-out"])
def test_strangers_may_send_hardly_anything(client, path):
    for body, headers in [
        (b"x" * 20_000, {}),
        (gzip.compress(bytes(20_000)), {"content-encoding": "gzip"}),
    ]:
        assert client.http.post(path, content=body, headers=headers).status_code == 413


def test_a_bomb_is_refused_at_the_limit_and_what_it_took_is_free_again(client, app):
    deflate = zlib.compressobj(9, wbits=31)
    bomb = b"".join(deflate.compress(bytes(2**20)) for _ in range(256)) + deflate.flush()
    assert len(bomb) < 2**19
    response = client.http.post(
        "/api/v2/events", content=bomb, headers={**client.authorization, "content-encoding": "gzip"}
    )
    assert response.status_code == 413
    wait_until_all_is_free(app)


@pytest.mark.parametrize("many", [b"[],", b'{"":0},', b"1.5,", b"[[[]]],"])
def test_a_body_that_unpacks_to_too_much_is_refused_before_it_is_decoded(client, app, slug, many):
    experiment = client.open(slug)
    body = b"[" + many * (24 * 2**20 // len(many)) + b"0]"
    headers = {**client.authorization, "content-encoding": "gzip"}
    for path, authorization in [
        ("/api/v2/events", client.authorization),
        (f"/api/v2/experiments/{experiment.id}/events", {"authorization": f"Bearer {experiment.token}"}),
        ("/api/v2/query/series", client.authorization),
        ("/api/v1/experiments", client.authorization),
    ]:
        response = client.http.post(
            path, content=gzip.compress(body * 2, 1), headers={**headers, **authorization}
        )
        assert response.status_code == 413, path
        assert "code=body_too_large" in response.json()["error"]["details"]
    wait_until_all_is_free(app)


def test_nobody_waits_while_a_large_body_is_decoded(client, app, slug, monkeypatch):
    """The decoding ends only once somebody else was answered."""
    experiment, answered, decode = client.open(slug), threading.Event(), batches.decode

    def slow(body, experiment_id):
        assert answered.wait(10)
        return decode(body, experiment_id)

    monkeypatch.setattr(batches, "decode", slow)
    large = [experiment.event("annotate", annotation="n" * 16_000) for _ in range(100)]
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(experiment.post, large)
        while not app.state.body_budget.turn.locked():
            assert not sent.done()
        assert answers(client)
        answered.set()
        assert sent.result().status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"nothing", gzip.compress(b"[]")[:-4], gzip.compress(b"[]") * 2, gzip.compress(b"[]") + b"x", b""],
    ids=["no gzip", "cut", "two", "more", "empty"],
)
def test_what_is_not_one_whole_gzip_member_is_refused(client, body):
    headers = {**client.authorization, "content-encoding": "gzip"}
    response = client.http.post("/api/v2/events", content=body, headers=headers)
    assert response.status_code == 400
    assert "code=malformed_request" in response.json()["error"]["details"]


def test_the_largest_batch_that_a_client_makes_passes_plain_and_compressed(client, slug):
    experiment = client.open(slug)
    for compressed in (False, True):
        events = [
            experiment.event("annotate", annotation="n" * 16_000, meta={"text": uuid.uuid4().hex * 2_000})
            for _ in range(1000)
        ]
        body = json.dumps(events).encode()
        assert len(body) > 80 * 2**20 // 1.05
        headers = {"content-encoding": "gzip"} if compressed else {}
        response = experiment.post(gzip.compress(body, 1) if compressed else body, **headers)
        assert response.status_code == 200
        assert all(reply["event"].endswith("annotated") for reply in response.json())


def test_all_bodies_together_are_bounded_and_who_comes_too_much_is_told_to_come_again(client, app):
    whole = app.state.body_budget
    app.state.body_budget = BodyBudget(max_bytes=1000)
    try:
        response = client.http.post(
            "/api/v2/events", content=b"[" + b" " * 1000 + b"]", headers=client.authorization
        )
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert answers(client)
    finally:
        app.state.body_budget = whole


def test_the_answers_to_one_request_are_bounded_and_changes_are_not(client, slug, monkeypatch):
    monkeypatch.setattr(org_events, "_MAX_ANSWERS_BYTES", 10)
    opening = {"messageId": "1", "event": "syvain.v2.experiment.open", "data": {"slug": slug}}
    replies = client.post([*OPEN, *OPEN, opening, *OPEN]).json()
    codes = [reply["data"].get("code") for reply in replies]
    assert codes == [None, "limit_exceeded", None, "limit_exceeded"]
    assert answers(client)


def test_a_large_answer_comes_whole_plain_and_compressed(client, slug):
    experiment = client.open(slug, meta={"text": uuid.uuid4().hex * 1_800})
    asked = {"event": "syvain.v2.query.experiment", "data": {"experimentId": experiment.id}}
    events = [{"messageId": str(place), **asked} for place in range(40)]
    for encoding in ("identity", "gzip"):
        response = client.http.post(
            "/api/v2/events", json=events, headers={**client.authorization, "accept-encoding": encoding}
        )
        assert len(response.content) > LARGE_BYTES
        assert [reply["correlationId"] for reply in response.json()] == [one["messageId"] for one in events]
        assert {json.dumps(reply["data"]["experiment"]) for reply in response.json()} == {
            json.dumps(client.record(experiment.id))
        }


def test_a_client_that_goes_away_leaves_no_trace(client, app, caplog):
    with connected(client) as connection:
        connection.sendall(head(client, "/api/v2/events", 1000) + b"[")
    wait_until_all_is_free(app)
    assert answers(client)
    assert caplog.records == []


def test_every_answer_carries_the_headers_that_keep_browsers_from_harm(client):
    for path in ("/healthz", "/api/v2/auth/status", "/sign-in", "/nothing", "/dashboard/static/page.js"):
        headers = client.http.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "same-origin"
        if "static" not in path:
            assert headers["cache-control"] == "no-store"
    assert httpx.get(f"{client.http.base_url}/nothing", timeout=60).status_code == 404
