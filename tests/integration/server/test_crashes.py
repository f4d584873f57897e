"""What is acknowledged is there, exactly once, whatever happens to the server."""

import contextlib
import random
import resource
import sqlite3
import threading
import uuid

import httpx
import pytest

from infra.server.store import codec
from tests.support.metrics_server import MetricsClient, MetricsServer, running_server

KILLS = 3
WRITERS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of these tests' own: they kill it."""
    with running_server(tmp_path_factory.mktemp("crashes") / "data") as server:
        yield server


class Writer(threading.Thread):
    """Sends batches, each again and again with the same ids until it is acknowledged."""

    def __init__(self, server: MetricsServer, slug: str, stop: threading.Event, *, own_ids: bool):
        super().__init__()
        self.client = MetricsClient(server.url, server.key)
        self.experiment = self.client.open(slug)
        self.stop, self.own_ids = stop, own_ids
        self.acknowledged: list[int] = []
        self.statuses: set[int] = set()

    def run(self):
        step = 0
        while not self.stop.is_set():
            steps = range(step, step + 40)
            step = steps.stop
            self.deliver([self.event(one) for one in steps])
            self.acknowledged.extend(steps)
        self.client.close()

    def event(self, step):
        message_id = None if self.own_ids else str(uuid.uuid4())
        return self.experiment.metric("m", step + 0.5, step, message_id=message_id, timestampMs=step)

    def deliver(self, events):
        while True:
            with contextlib.suppress(httpx.TransportError):
                response = self.experiment.post(events)
                self.statuses.add(response.status_code)
                if response.status_code == 200:
                    assert {reply["event"] for reply in response.json()} == {
                        "syvain.v2.experiment.metricRecorded"
                    }
                    return
            self.stop.wait(0.02)  # the server is down; the main thread starts it again


def test_killed_under_load_every_acknowledged_event_is_there_exactly_once(server, client, slug):
    stop, chance = threading.Event(), random.Random(7)
    writers = [Writer(server, f"{slug}-{one}", stop, own_ids=one % 2 == 0) for one in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(KILLS):
            wanted = sum(len(writer.acknowledged) for writer in writers) + chance.randrange(40, 800)
            while sum(len(writer.acknowledged) for writer in writers) < wanted:
                stop.wait(0.001)
            server.kill()
            server.start()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    for writer in writers:
        rows = client.points(writer.experiment.id)["m", ()]
        assert rows == [(step, step, step + 0.5) for step in writer.acknowledged]
        assert writer.statuses <= {200}, "no 5xx but while it is down"
        packed = sqlite3.connect(server.data / "metrics.sqlite3").execute(
            "SELECT data FROM point_blocks WHERE series_id = (SELECT s.id FROM series s JOIN experiments e"
            " ON e.id = s.experiment_id WHERE e.uid = ?) ORDER BY first",
            (writer.experiment.id,),
        )
        arrived = [step for (data,) in packed for step in codec.decode(data).steps.tolist()]
        assert arrived == writer.acknowledged, "in order of arrival"


def test_what_was_applied_before_a_restart_is_not_applied_again(server, client, slug):
    experiment = client.open(slug)
    events = [
        experiment.event("start"),
        experiment.metric("m", 1.0, -1),  # refused: a hole that the restart must remember
        experiment.metric("m", 2.0, 1),
        experiment.metric("m", 3.0, 2, message_id="foreign"),
        experiment.event("annotate", annotation="n"),
    ]
    experiment.send(*events)
    before = client.record(experiment.id), client.points(experiment.id)
    server.kill()
    server.start()
    assert (client.record(experiment.id), client.points(experiment.id)) == before
    experiment.send(*events)
    record = client.record(experiment.id)
    assert record == before[0] | {"lastHeartbeatAtMs": record["lastHeartbeatAtMs"]}
    assert client.points(experiment.id) == before[1]
    right = {**events[1], "data": {**events[1]["data"], "step": 0}}
    experiment.send(right, *events[2:])
    assert [value for _, _, value in client.points(experiment.id)["m", ()]] == [1.0, 2.0, 3.0]


def test_a_disk_without_room_is_503_and_needs_nobody_when_there_is_room_again(server, client, slug):
    """The process may write no file beyond what it has; what was sent meanwhile is applied once, later."""
    experiment = client.open(slug)
    events = [experiment.metric(f"m{step}", 1.0, step, meta={"k": "v" * 500}) for step in range(1000)]
    assert server.process is not None
    unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in server.data.glob("metrics.sqlite3*"))
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (largest, unlimited[1]))
    response = experiment.post(events)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert response.json()["error"]["details"] == "code=unavailable"
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))  # nor within what it has
    small = client.post([{"messageId": "0", "event": "syvain.v2.experiment.open", "data": {"slug": "b"}}])
    assert small.status_code == 503
    assert client.points(experiment.id) == {}
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
    experiment.send(*events)
    experiment.send(*events)
    assert len(client.points(experiment.id)) == 1000
    assert {len(rows) for rows in client.points(experiment.id).values()} == {1}
