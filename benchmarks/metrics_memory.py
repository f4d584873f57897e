"""What our server holds in memory with ten thousand experiments, a thousand of them written to at once."""

from __future__ import annotations

import http.client
import random
import time
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson

from benchmarks.metrics_processes import on_the_servers_core, resident_mib
from tests.support.metrics_server import Experiment, MetricsClient

if TYPE_CHECKING:
    from tests.support.metrics_server import MetricsServer

__all__ = ["measure"]

EXPERIMENTS, WRITERS = 10_000, 1_000
_ROUNDS = 5
_SERIES, _STEPS = 10, 10


def measure(server: MetricsServer) -> dict[str, float]:
    """Return the figures; the server is stopped at the end."""
    with on_the_servers_core():
        server.start()
    assert server.process is not None
    client = MetricsClient(server.url, server.key)
    runs = _open_all(client)
    empty = resident_mib(server.process.pid)
    connections = [
        http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=120) for _ in range(WRITERS)
    ]
    began = time.perf_counter()
    for number in range(_ROUNDS):
        _one_round(runs[:WRITERS], connections, number)
    seconds, rss = time.perf_counter() - began, resident_mib(server.process.pid)
    for connection in connections:
        connection.close()
    client.close()
    server.stop()
    return {
        "rss_mib": round(rss),
        "rss_idle_mib": round(empty),
        "writers_points_per_s": round(_ROUNDS * WRITERS * _SERIES * _STEPS / seconds),
    }


def _open_all(client: MetricsClient) -> list[Experiment]:
    """Open the experiments, a thousand in a request."""
    runs = []
    for begin in range(0, EXPERIMENTS, 1_000):
        events = [
            {
                "messageId": str(number),
                "event": "syvain.v2.experiment.open",
                "data": {
                    "slug": f"run-{number}",
                    "description": "",
                    "meta": {"lr": number / 7, "layers": [64, 64]},
                },
            }
            for number in range(begin, begin + 1_000)
        ]
        for reply in client.post(events).json():
            data = reply["data"]
            runs.append(
                Experiment(client, data["experimentId"], data["experimentToken"], data, uuid.uuid4().hex)
            )
    return runs


def _one_round(runs: list[Experiment], connections: list[http.client.HTTPConnection], number: int) -> None:
    """Every writer sends a batch over its own connection before any looks at its answer."""
    requests = [_request(run, number) for run in runs]
    for connection, request in zip(connections, requests, strict=True):
        _send(connection, request)
    for connection, request in zip(connections, requests, strict=True):
        try:
            response = connection.getresponse()
        except ConnectionError:  # the server had closed the silent connection: clients send again
            _send(connection, request)
            response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer


def _request(run: Experiment, number: int) -> tuple[str, bytes, dict[str, str]]:
    rng = random.Random(number)
    events = [
        run.metric(f"loss/{series}", rng.random(), number * _STEPS + step, meta={"split": "train"})
        for step in range(_STEPS)
        for series in range(_SERIES)
    ]
    headers = {"authorization": f"Bearer {run.token}", "content-type": "application/json"}
    return f"/api/v2/experiments/{run.id}/events", orjson.dumps(events), headers


def _send(connection: http.client.HTTPConnection, request: tuple[str, bytes, dict[str, str]]) -> None:
    try:
        connection.request("POST", *request)
    except ConnectionError:
        connection.close()
        connection.request("POST", *request)
