"""Reading from our server: a series of a million points whole, and a chart of one of ten million."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import orjson

from benchmarks.metrics_processes import on_the_servers_core
from tests.support.metrics_server import MetricsClient

if TYPE_CHECKING:
    from pathlib import Path

    from infra.server.store.sessions import Session
    from infra.server.store.store import Store
    from tests.support.metrics_server import Experiment, MetricsServer

__all__ = ["CHART_POINTS", "READ_POINTS", "measure"]

READ_POINTS, CHART_POINTS = 1_000_000, 10_000_000
_BATCH, _BATCHES_IN_A_COMMIT = 1_000, 64
_PIXELS = 1_000


def measure(server: MetricsServer) -> dict[str, float]:
    """Return the figures; the server is stopped at the end."""
    _start(server)
    client = MetricsClient(server.url, server.key)
    read, drawn = client.open("read"), client.open("drawn")
    server.stop()
    began = time.perf_counter()
    fill(server.data, read, READ_POINTS)
    fill(server.data, drawn, CHART_POINTS)
    print(f"{READ_POINTS + CHART_POINTS:,} points written in {time.perf_counter() - began:.0f} s", flush=True)
    _start(server)
    figures = _charts(server, client, drawn) | _whole(client, read)
    server.stop()
    client.close()
    return figures


def fill(data: Path, run: Experiment, count: int) -> None:
    """Write a series as the stopped server would have, batch by batch of its sender, without HTTP between."""
    from infra.server.datadir import DataDir
    from infra.server.store.store import Store

    place = DataDir(data)
    with place.hold(), closing(Store(place.address)) as store:
        found = store.read_now(lambda connection: _session(connection, run))
        rng = np.random.default_rng(3)
        for begin in range(0, count, _BATCH * _BATCHES_IN_A_COMMIT):
            end = min(begin + _BATCH * _BATCHES_IN_A_COMMIT, count)
            steps = np.arange(begin, end)
            losses = (2 + 1 / np.sqrt(1 + steps / 1e4) + rng.normal(0, 0.1, end - begin)).astype(np.float32)
            times = 1_700_000_000_000 + 20 * steps + rng.integers(0, 3, end - begin)
            _write(store, found, run.sender, steps=steps, times=times, values=losses.astype(np.float64))


def _session(connection: Any, run: Experiment) -> Session:
    from infra.server.store import sessions

    found = sessions.find(connection, run.token, run.id, now_ms=time.time_ns() // 1_000_000)
    assert found is not None
    return found[1]


def _write(store: Store, session: Session, sender: str, *, steps: Any, times: Any, values: Any) -> None:
    from infra.server.limits import partition
    from infra.server.store.commands import Records

    series = partition("train/loss", (("split", "train"), ("stage", "train")))

    def write(connection: Any) -> None:
        for begin in range(0, len(steps), _BATCH):
            cut = slice(begin, begin + _BATCH)
            ids = [f"{sender}.{step + 1}" for step in steps[cut].tolist()]
            records = Records(
                ids, [series], [0] * len(ids), steps[cut].tolist(), times[cut].tolist(), values[cut].tolist()
            )
            refused, _ = store.ingest.apply_columns(connection, session, records, [], now_ms=store.clock_ms())
            assert not refused, refused

    store.write_now(write)


def _charts(server: MetricsServer, client: MetricsClient, run: Experiment) -> dict[str, float]:
    """The first query of a server process, again and again; then those that follow."""
    first = []
    for _ in range(5):
        server.stop()
        _forget_pages(server.data)
        _start(server)
        first.append(_chart_ms(client, run))
    warm = [_chart_ms(client, run) for _ in range(20)]
    rss = _rss_mib(server)
    return {
        "chart_first_ms": round(statistics.median(first), 1),
        "chart_ms": round(statistics.median(warm), 1),
        "chart_rss_mib": rss,
    }


def _chart_ms(client: MetricsClient, run: Experiment) -> float:
    began = time.perf_counter()
    response = client.http.get(
        f"/api/experiments/{run.id}/chart",
        params={"metric": "train/loss", "width": _PIXELS},
        headers=client.authorization,
    )
    took = 1_000 * (time.perf_counter() - began)
    (curve,) = response.json()["partitions"]
    assert curve["step"][-1] == CHART_POINTS - 1
    assert _PIXELS / 2 < len(curve["step"]) <= _PIXELS
    return took


def _whole(client: MetricsClient, run: Experiment) -> dict[str, float]:
    """Read the series as a program does: every line decoded into lists."""
    query = {
        "messageId": uuid.uuid4().hex,
        "event": "syvain.v2.query.experimentseries",
        "data": {"experimentId": run.id},
    }
    took = []
    for _ in range(3):
        began, count = time.perf_counter(), 0
        with client.http.stream(
            "POST", "/api/v2/query/series", json=query, headers=client.authorization
        ) as answer:
            for line in answer.iter_lines():
                event = orjson.loads(line)
                if event["event"] == "syvain.v2.query.series.data":
                    count += len(event["data"]["data"]["value"])
        took.append(time.perf_counter() - began)
        assert count == READ_POINTS, count
    return {"read_s": round(statistics.median(took), 3)}


def _start(server: MetricsServer) -> None:
    with on_the_servers_core():
        server.start()
    httpx.get(f"{server.url}/healthz").raise_for_status()


def _rss_mib(server: MetricsServer) -> float:
    from benchmarks.metrics_processes import resident_mib

    assert server.process is not None
    return round(resident_mib(server.process.pid))


def _forget_pages(data: Path) -> None:
    """Have the disk's pages dropped from memory: a first query reads from the disk."""
    os.sync()
    for file in data.glob("metrics.sqlite3*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
