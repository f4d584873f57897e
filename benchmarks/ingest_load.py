"""Durable ingest over HTTP: prepared batches to the real server, which has one core to itself.

    python benchmarks/ingest_load.py [--batches N] [--connections N] [--series N] [--foreign] [--plain]

The bodies are those of our own sender (gzip unless --plain, replies as httpx asks for them), made before the
clock starts; --foreign gives them random message ids, as other clients do. Prints what is measured and one
line of JSON.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import random
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.metrics_server import Experiment, MetricsClient, MetricsServer

EVENTS = 1000


def main() -> None:
    arguments = _arguments()
    os.sched_setaffinity(0, {0})
    with tempfile.TemporaryDirectory() as directory:
        server = MetricsServer(Path(directory) / "data", is_forked=False)
        server.start()  # on the first core, as its parent
        os.sched_setaffinity(0, set(range(1, os.cpu_count() or 2)))
        try:
            figures = _measure(server, arguments)
        finally:
            server.stop()
        figures["bytes_per_point"] = round(
            sum(file.stat().st_size for file in server.data.glob("metrics.sqlite3*")) / figures["points"], 2
        )
    for name, value in figures.items():
        print(f"{name:>24} {value:,}")
    print(json.dumps(figures))


def _measure(server: MetricsServer, arguments: argparse.Namespace) -> dict[str, float]:
    client = MetricsClient(server.url, server.key)
    runs = [client.open(f"load-{number}") for number in range(arguments.connections)]
    prepared = [_bodies(run, arguments) for run in runs]
    latencies: list[float] = []
    senders = [
        threading.Thread(target=_send, args=(server.port, run, bodies, arguments, latencies))
        for run, bodies in zip(runs, prepared, strict=True)
    ]
    assert server.process is not None
    cpu, begun = _cpu_s(server.process.pid), time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    elapsed, cpu = time.perf_counter() - begun, _cpu_s(server.process.pid) - cpu
    points = EVENTS * arguments.batches * arguments.connections
    stored = sum(len(rows) for rows in client.points(runs[0].id).values())
    assert stored == EVENTS * arguments.batches, f"{stored:,} points are stored"
    client.close()
    latencies.sort()
    return {
        "points": points,
        "points_per_s": round(points / elapsed),
        "cpu_us_per_point": round(cpu / points * 1e6, 2),
        "busy": round(cpu / elapsed, 2),
        "batch_p50_ms": round(1000 * latencies[len(latencies) // 2], 1),
        "batch_p99_ms": round(1000 * latencies[len(latencies) * 99 // 100], 1),
    }


def _bodies(run: Experiment, arguments: argparse.Namespace) -> list[bytes]:
    """Losses that were born as float32 at regular steps, of some series in turn."""
    rng, number, bodies = random.Random(7), 0, []
    at_ms = 1_700_000_000_000
    for _ in range(arguments.batches):
        events = []
        for _ in range(EVENTS):
            step, place = divmod(number, arguments.series)
            at_ms += rng.randrange(2) if place == 0 else 0
            event = run.metric(
                f"loss/{place}" if place else "train/loss",
                float(_float32(2.0 + rng.gauss(0, 0.1))),
                step,
                message_id=str(uuid.uuid4()) if arguments.foreign else None,
                timestampMs=at_ms,
                meta={"split": "train", "stage": "pretrain"},
            )
            events.append(event)
            number += 1
        body = orjson.dumps(events)
        bodies.append(body if arguments.plain else gzip.compress(body, 1))
    return bodies


def _float32(value: float) -> float:
    import numpy as np

    return float(np.float32(value))


def _send(
    port: int, run: Experiment, bodies: list[bytes], arguments: argparse.Namespace, latencies: list[float]
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"authorization": f"Bearer {run.token}", "content-type": "application/json"}
    if not arguments.plain:
        headers |= {"content-encoding": "gzip", "accept-encoding": "gzip, deflate"}
    for body in bodies:
        begun = time.perf_counter()
        connection.request("POST", f"/api/v2/experiments/{run.id}/events", body, headers)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        latencies.append(time.perf_counter() - begun)
    connection.close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--series", type=int, default=10)
    parser.add_argument("--foreign", action="store_true")
    parser.add_argument("--plain", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
