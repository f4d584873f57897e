"""Thirty-two writers and eight readers at once, the server killed in between."""

import random
import threading
import uuid

import httpx
import pytest

from tests.support.metrics_server import MetricsClient, running_server

WRITERS, READERS, BATCH = 32, 8, 20


@pytest.fixture
def server(tmp_path):
    with running_server(tmp_path / "data") as server:
        yield server


class Load:
    """What the threads share: whether to stop, what they were answered, what was acknowledged."""

    def __init__(self, server):
        self.server, self.slug = server, uuid.uuid4().hex
        self.stop = threading.Event()
        self.statuses: set[int] = set()
        self.wrong: list[str] = []
        self.acknowledged = [0] * WRITERS
        client = MetricsClient(server.url, server.key)
        self.experiments = [client.open(f"{self.slug}-{one}") for one in range(WRITERS)]
        self.shared = client.open(self.slug)
        client.close()

    def noted(self, response):
        self.statuses.add(response.status_code)
        return response.status_code == 200

    def write(self, number):
        """Batches to an experiment of one's own, and one point of each to one that all share."""
        client = MetricsClient(self.server.url, self.server.key)
        experiment = self.experiments[number]
        experiment.client = client
        own = client.open(self.slug)
        while not self.stop.is_set():
            first = self.acknowledged[number]
            events = [experiment.metric("m", step + 0.5, step) for step in range(first, first + BATCH)]
            self.deliver(experiment, events)
            self.deliver(own, [own.metric("m", float(number), first)])
            self.acknowledged[number] = first + BATCH
        client.close()

    def deliver(self, experiment, events):
        while True:
            try:
                if self.noted(experiment.post(events)):
                    return
            except httpx.TransportError:
                pass
            self.stop.wait(0.02)

    def read(self, seed):
        """A revision never tells of points that are not there yet; what was acknowledged is there."""
        client, chance = MetricsClient(self.server.url, self.server.key), random.Random(seed)
        while not self.stop.is_set():
            number = chance.randrange(WRITERS)
            try:
                promised = self.acknowledged[number]
                revision = client.record(self.experiments[number].id)["seriesRevision"]
                num_points = sum(map(len, client.points(self.experiments[number].id).values()))
            except httpx.TransportError:
                self.stop.wait(0.02)
                continue
            if num_points < max(promised, BATCH * revision):
                self.wrong.append(f"{promised} acknowledged, revision {revision}, {num_points} points")
        client.close()

    def reach(self, num_points):
        """Wait until every writer has had so many points acknowledged."""
        while min(self.acknowledged) < num_points:
            assert not self.wrong, self.wrong
            self.stop.wait(0.02)


def test_nothing_is_lost_and_no_reader_sees_a_revision_ahead_of_its_points(server):
    load = Load(server)
    threads = [threading.Thread(target=load.write, args=(number,)) for number in range(WRITERS)]
    threads += [threading.Thread(target=load.read, args=(seed,)) for seed in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        load.reach(2 * BATCH)
        server.kill()
        server.start()
        load.reach(6 * BATCH)
    finally:
        load.stop.set()
        for thread in threads:
            thread.join()
    assert load.wrong == []
    assert load.statuses == {200}, "no 5xx but while it is down, and then nothing answers at all"
    client = MetricsClient(server.url, server.key)
    for experiment, count in zip(load.experiments, load.acknowledged, strict=True):
        rows = client.points(experiment.id)["m", ()]
        assert [(step, value) for step, _, value in rows] == [(step, step + 0.5) for step in range(count)]
    shared = sorted((value, step) for step, _, value in client.points(load.shared.id)["m", ()])
    assert shared == [
        (float(number), step)
        for number, count in enumerate(load.acknowledged)
        for step in range(0, count, BATCH)
    ], "no update of the one that all write to is lost or doubled"
    client.close()
