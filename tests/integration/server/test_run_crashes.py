"""A run's points and its log are there once, whenever the server is killed."""

import contextlib
import threading

import httpx
import pytest

from tests.support.databases import KINDS
from tests.support.metrics_proxy import running_metrics_proxy
from tests.support.metrics_server import MetricsClient, server_on
from tests.support.rest import Rest
from tests.support.run_points import lines_of
from tests.support.waiting import wait_until

FILE = [{"step": step, "loss": 1 / (step + 1)} for step in range(1500)]


@pytest.fixture(params=KINDS)
def server(request, tmp_path):
    """A server of the test's own: it is killed."""
    with server_on(request.param, tmp_path / "data", request) as server:
        yield server


@contextlib.contextmanager
def rest_at(url, key):
    client = MetricsClient(url, key)
    yield Rest(client)
    client.close()


@pytest.fixture
def rest(server):
    """Asks the server, which has a run `r`."""
    with rest_at(server.url, server.key) as rest:
        rest.ask("POST", "/runs", {"slug": "r"})
        yield rest


class Tail:
    """Sends a file's points and what is logged with them; it knows nothing but what the server says."""

    def __init__(self, rest):
        self.rest = rest
        self.path = "/runs/r"
        self.moved = 0

    def send(self, points, after_seq):
        """Return the seq of the last point that is stored."""
        body = {"attempt": 1, "after_seq": after_seq, "points": points, "cursor": {"offset": after_seq}}
        response = self.rest.send("POST", f"{self.path}/telemetry", body)
        if response.status_code == 409:
            self.moved += 1
            stored = response.json()["error"]["stored"]
            assert stored["cursor"]["offset"] < stored["last_seq"], "the cursor is that of the last batch"
            return stored["last_seq"]
        assert response.status_code == 200, response.text
        return response.json()["data"]["last_seq"]

    def log(self, text, offset):
        """Return how many bytes of the log were sent."""
        response = self.rest.send("POST", f"{self.path}/log", {"attempt": 1, "offset": offset, "text": text})
        if response.status_code == 409:
            return response.json()["error"]["stored"]["offset"]
        assert response.status_code == 200, response.text
        return response.json()["data"]["offset"]


@pytest.mark.parametrize("fault", ["reset", "lose_reply"])
def test_a_kill_between_a_batch_and_its_answer_loses_and_doubles_nothing(server, rest, fault):
    """`reset`: the batch never arrived. `lose_reply`: it was stored, and nobody was told."""
    with running_metrics_proxy(server.url) as proxy, rest_at(proxy.url, server.key) as through:
        tail = Tail(through)
        assert tail.send(FILE[:10], 0) == 10
        proxy.fail("/api/v1/runs/r/telemetry", fault)
        with pytest.raises(httpx.TransportError):
            tail.send(FILE[10:20], 10)
        server.kill()
        server.start()
        assert tail.send(FILE[10:20], 10) == 20
        assert tail.moved == (fault == "lose_reply")
        assert tail.send(FILE[20:25], 20) == 25
    assert rest.send("GET", "/runs/r/telemetry/points").content == lines_of(FILE[:25])


def test_killed_while_points_stream_in_every_one_is_there_once(server, rest):
    stored, text = [0], "".join(f"step {step}\n" for step in range(len(FILE)))

    def follow():
        at = logged = 0
        with rest_at(server.url, server.key) as own:
            tail = Tail(own)
            while at < len(FILE) or logged < len(text):
                with contextlib.suppress(httpx.TransportError):
                    at = tail.send(FILE[at : at + 30], at)
                    logged = tail.log(text[logged : logged + 400], logged)
                    stored[0] = at

    thread = threading.Thread(target=follow)
    thread.start()
    for share in (0.2, 0.5):
        due = share * len(FILE)
        wait_until(lambda due=due: stored[0] >= due, within_s=60, poll_s=0.01)  # type: ignore[misc]
        server.kill()
        server.start()
    thread.join()
    assert rest.send("GET", "/runs/r/telemetry/points").content == lines_of(FILE)
    assert rest.send("GET", "/runs/r/log").text == text
