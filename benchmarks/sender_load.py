"""Durable ingest from our own sender: a run's stream pushed as fast as it takes, until all is acknowledged.

    python benchmarks/sender_load.py [--points 1000000] [--per-step 20] [--profile]

The server has the first core to itself and the sender, with the stream that feeds it, the second. Prints what
is measured, and one line of JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.metrics_processes import cpu_s, on_the_servers_core, pin_client
from runtime.events.kinds import Open
from runtime.events.stream import EventStream, now_ms
from runtime.events.syvain.sender import Sender
from runtime.events.syvain.settings import MetricsSettings
from runtime.events.syvain.target import SyvainTarget
from tests.support.metrics_server import MetricsClient, MetricsServer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["push"]

_MOST_UNSENT = 100_000


def push(url: str, key: str, slug: str, *, points: int, per_step: int) -> None:
    """Say points to a stream, some each step, and return once Metrics has acknowledged all of them."""
    target = SyvainTarget(MetricsSettings(url, key), session=uuid.uuid4().hex)
    stream = EventStream([target])
    stream.open(Open(now_ms(), slug, "", {}))
    rng = random.Random(7)
    names = [f"loss/{number}" for number in range(per_step)]
    values = [round(2.0 + rng.gauss(0, 0.1), 7) for _ in range(1_000)]
    metadata = {"split": "train", "stage": "pretrain"}
    for step in range(points // per_step):
        said = [(name, values[(step + at) % 1_000], metadata) for at, name in enumerate(names)]
        stream.metrics(step, lambda said=said: said)  # type: ignore[misc]
        while step % 100 == 0 and (len(stream._queue) > 500 or target.unsent > _MOST_UNSENT):  # noqa: SLF001
            time.sleep(0.001)
    stream.done(slug)
    summary = stream.close(timeout_s=60)
    assert (summary.num_dropped, summary.unsent) == (0, 0), summary


def main() -> None:
    given = _arguments()
    pin_client()
    with tempfile.TemporaryDirectory() as directory:
        server = MetricsServer(Path(directory) / "data", is_forked=False)
        with on_the_servers_core():
            server.start()
        assert server.process is not None
        try:
            push(server.url, server.key, "warm-up", points=10_000, per_step=given.per_step)
            server_s, sender_s, began = cpu_s(server.process.pid), time.process_time(), time.perf_counter()
            with _profiled(wanted=given.profile):
                push(server.url, server.key, "load", points=given.points, per_step=given.per_step)
            seconds = time.perf_counter() - began
            figures = {
                "points_per_s_sender": round(given.points / seconds),
                "sender_cpu_s_per_m": round((time.process_time() - sender_s) / given.points * 1e6, 2),
                "server_cpu_s_per_m": round((cpu_s(server.process.pid) - server_s) / given.points * 1e6, 2),
            }
            _check(server, given.points, given.per_step)
        finally:
            server.stop()
    for name, value in figures.items():
        print(f"{name:>24} {value:,}")
    print(json.dumps(figures))


def _check(server: MetricsServer, points: int, per_step: int) -> None:
    """Every point is there, each once and in its order."""
    client = MetricsClient(server.url, server.key)
    query = client.http.get("/api/v1/experiments", params={"slug": "load"}, headers=client.authorization)
    stored = client.points(query.json()["data"]["experiments"][0]["id"])
    client.close()
    assert len(stored) == per_step
    for rows in stored.values():
        assert [row[0] for row in rows] == list(range(points // per_step))


@contextmanager
def _profiled(*, wanted: bool) -> Iterator[None]:
    """Say where the sender's and the stream's threads spend their time."""
    if not wanted:
        yield
        return
    profiles: list[cProfile.Profile] = []

    def watched(run: object) -> object:
        def inner(self: object) -> None:
            profile = cProfile.Profile(time.thread_time)
            profiles.append(profile)
            profile.runcall(run, self)  # type: ignore[arg-type]

        return inner

    classes: tuple[Any, ...] = (Sender, EventStream)
    for kind in classes:
        kind._run = watched(kind._run)  # noqa: SLF001
    yield
    for profile in profiles:
        pstats.Stats(profile).sort_stats("tottime").print_stats(22)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--per-step", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
