"""The clients of our server, as processes: the real ones, and their batches made beforehand."""

from __future__ import annotations

import http.client
import json
import os
import time
import uuid
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import orjson

from benchmarks.metrics_points import Point, load
from benchmarks.metrics_processes import wait_to_go

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["ROLES"]

SENDERS_BATCH = 1_000
COLLECTORS_BATCH = 500
"""What either sends in one request unless told otherwise."""


def our_sender(url: str, key: str, slug: str, points: Sequence[Point]) -> list[float]:
    """Bring a full spool to the server, from the open to the last acknowledgement."""
    from runtime.events.kinds import Metric, Open
    from runtime.events.syvain.settings import MetricsSettings
    from runtime.events.syvain.target import SyvainTarget

    target = SyvainTarget(MetricsSettings(url, key), session=uuid.uuid4().hex)
    for begin in range(0, len(points), 100):
        events = [Metric(p.ts_ms, p.step, p.name, p.value, p.metadata) for p in points[begin : begin + 100]]
        target.write(events, [event.encode() for event in events])
    http_client = cast("Any", target)._client._http  # noqa: SLF001 - the clock stands around the request alone
    latencies: list[float] = []
    http_client.request = _timed(http_client.request, latencies, named="/events")
    opening = Open(points[0].ts_ms, slug, "", {})
    wait_to_go()
    target.write([opening], [opening.encode()])
    target.close(120)  # at once: the last events are not kept a second in the hope of more
    assert target.unsent == 0
    assert not target.dropped, target.dropped
    return latencies


def public_collector(url: str, key: str, slug: str, points: Sequence[Point]) -> list[float]:
    """Say every point to the public collector, as a program does, and wait until all are acknowledged."""
    from syvain_metrics_collector import Collector

    collector = Collector(key, host=url, max_queue_items=len(points) + 100)
    wait_to_go()
    run = collector.experiment(slug)
    for point in points:
        run.metric(point.name, point.value, step=point.step, timestamp=point.ts_ms, metadata=point.metadata)
    result = run.flush_or_raise(120)
    assert result.dropped == 0, result
    return []


def senders_batches(url: str, key: str, slug: str, points: Sequence[Point]) -> list[float]:
    """Send what our sender would send, made beforehand: what bounds is the server."""
    session = uuid.uuid4().hex
    experiment_id, token = _open(url, key, slug)

    def message(number: int, point: Point) -> bytes:
        return _message(f"{session}.{number + 1}", experiment_id, point)

    batches = _bodies([message(*each) for each in enumerate(points)], SENDERS_BATCH)
    return _post_all(url, experiment_id, token, batches, {"accept-encoding": "identity"})


def collectors_batches(url: str, key: str, slug: str, points: Sequence[Point]) -> list[float]:
    """Send what the public collector would send, made beforehand: what bounds is the server."""
    experiment_id, token = _open(url, key, slug)
    messages = [_message(uuid.uuid4().hex, experiment_id, point) for point in points]
    bodies = _bodies(messages, COLLECTORS_BATCH)
    return _post_all(url, experiment_id, token, bodies, {"accept-encoding": "gzip"})


ROLES: dict[str, Callable[[str, str, str, Sequence[Point]], list[float]]] = {
    "sender": our_sender,
    "collector": public_collector,
    "senders-batches": senders_batches,
    "collectors-batches": collectors_batches,
}


def act(role: str, url: str, slug: str, file: Path) -> None:
    """Be one of the clients; the key is in the environment."""
    latencies = ROLES[role](url, os.environ["METRICS_KEY"], slug, load(file))
    print(json.dumps({"latencies_ms": latencies}))


def _timed(request: Callable[..., Any], latencies: list[float], *, named: str) -> Callable[..., Any]:
    def timed(method: str, url: Any, **more: Any) -> Any:
        began = time.perf_counter()
        response = request(method, url, **more)
        if url.path.endswith(named) and "experiments" in url.path:
            latencies.append(1_000 * (time.perf_counter() - began))
        return response

    return timed


def _message(message_id: str, experiment_id: str, point: Point) -> bytes:
    return orjson.dumps(
        {
            "messageId": message_id,
            "event": "syvain.v2.experiment.metric",
            "data": {
                "experimentId": experiment_id,
                "timestampMs": point.ts_ms,
                "step": point.step,
                "metricName": point.name,
                "metricValue": point.value,
                "meta": point.metadata,
            },
        }
    )


def _bodies(messages: Sequence[bytes], size: int) -> list[bytes]:
    return [b"[%b]" % b",".join(messages[at : at + size]) for at in range(0, len(messages), size)]


def _open(url: str, key: str, slug: str) -> tuple[str, str]:
    from tests.support.metrics_server import MetricsClient

    client = MetricsClient(url, key)
    run = client.open(slug)
    client.close()
    return run.id, run.token


def _post_all(
    url: str, experiment_id: str, token: str, bodies: Sequence[bytes], more: dict[str, str]
) -> list[float]:
    """Send bodies one after another over one connection."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json", **more}
    latencies = []
    wait_to_go()
    for body in bodies:
        began = time.perf_counter()
        connection.request("POST", f"/api/v2/experiments/{experiment_id}/events", body, headers)
        response = connection.getresponse()
        answer = response.read()
        latencies.append(1_000 * (time.perf_counter() - began))
        assert response.status == 200, answer
    connection.close()
    return latencies
