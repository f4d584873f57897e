"""Many writers and readers of one real Metrics server at once, which is killed under them."""

from __future__ import annotations

import random
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from tests.support.metrics_server import MetricsClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.metrics_server import Experiment, MetricsServer

__all__ = ["BATCH", "Load"]

BATCH = 20


class Load:
    """What the threads share: whether to stop, what they were answered, what was acknowledged."""

    def __init__(self, server: MetricsServer, *, num_writers: int, num_readers: int) -> None:
        self.server, self.slug = server, uuid.uuid4().hex
        self.stop = threading.Event()
        self.statuses: set[int] = set()
        self.wrong: list[str] = []
        self.acknowledged = [0] * num_writers
        client = MetricsClient(server.url, server.key)
        self.experiments = [client.open(f"{self.slug}-{one}") for one in range(num_writers)]
        self.shared = client.open(self.slug)
        client.close()
        self.threads = [threading.Thread(target=self._write, args=(one,)) for one in range(num_writers)]
        self.threads += [threading.Thread(target=self._read, args=(seed,)) for seed in range(num_readers)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write and read as long as the context."""
        for thread in self.threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in self.threads:
                thread.join()

    def reach(self, num_points: int) -> None:
        """Wait until every writer has had so many points acknowledged."""
        while min(self.acknowledged) < num_points:
            assert not self.wrong, self.wrong
            self.stop.wait(0.02)

    def check(self) -> None:
        """All that was acknowledged is there once, and nobody was told anything wrong."""
        assert self.wrong == []
        assert self.statuses == {200}, "no 5xx but while it is down, and then nothing answers at all"
        client = MetricsClient(self.server.url, self.server.key)
        for experiment, count in zip(self.experiments, self.acknowledged, strict=True):
            rows = client.points(experiment.id)["m", ()]
            assert [(step, value) for step, _, value in rows] == [(step, step + 0.5) for step in range(count)]
        shared = sorted((value, step) for step, _, value in client.points(self.shared.id)["m", ()])
        assert shared == [
            (float(number), step)
            for number, count in enumerate(self.acknowledged)
            for step in range(0, count, BATCH)
        ], "no update of the one that all write to is lost or doubled"
        client.close()

    def _write(self, number: int) -> None:
        """Send batches to an experiment of one's own, and one point of each to one that all share."""
        client = MetricsClient(self.server.url, self.server.key)
        experiment = self.experiments[number]
        experiment.client = client
        own = client.open(self.slug)
        while not self.stop.is_set():
            first = self.acknowledged[number]
            events = [experiment.metric("m", step + 0.5, step) for step in range(first, first + BATCH)]
            self._deliver(experiment, events)
            self._deliver(own, [own.metric("m", float(number), first)])
            self.acknowledged[number] = first + BATCH
        client.close()

    def _deliver(self, experiment: Experiment, events: Sequence[Any]) -> None:
        while True:
            try:
                status = experiment.post(events).status_code
            except httpx.TransportError:
                self.stop.wait(0.02)
                continue
            self.statuses.add(status)
            if status == 200:
                return
            self.stop.wait(0.02)

    def _read(self, seed: int) -> None:
        """Look: a revision never tells of points that are not there yet; what was acknowledged is there."""
        client, chance = MetricsClient(self.server.url, self.server.key), random.Random(seed)
        while not self.stop.is_set():
            number = chance.randrange(len(self.experiments))
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
