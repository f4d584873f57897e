"""The Metrics server against MLflow's and Trackio's: the same points, durably, each server on one core.

    python benchmarks/metrics_server.py [--only ingest --only read ...] [--points 400000]

`ingest`: what our own sender and the public collector bring to it over HTTP, as the clients that they are,
which share the other core, and with their batches made beforehand, so that only the server bounds.
`postgresql`: our sender once more, with PostgreSQL on the server's core. `peers`: the same points to the
peers' servers. `read`: a series of a million points, a chart of ten million. `memory`: ten thousand
experiments. The last line is JSON, with `points_per_s`, `points_per_s_foreign`, `over_mlflow`,
`chart_ms`, `bytes_per_point` and `rss_mib` among others.
"""

# ruff: noqa: E402 - the repository's root comes before what is imported from it
from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import metrics_clients, metrics_memory, metrics_peers, metrics_points, metrics_reading
from benchmarks.metrics_processes import (
    Client,
    Sent,
    on_the_servers_core,
    pin_client,
    resident_mib,
    size_of,
    together,
)
from tests.support.databases import running_postgres
from tests.support.metrics_server import MetricsClient, MetricsServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.metrics_peers import Peer
    from benchmarks.metrics_points import Point
    from tests.support.databases import Postgres

PARTS = ("ingest", "postgresql", "peers", "read", "memory")
CLIENTS = 8
"""At once: so many keep the server busy; more gain nothing."""
OURS = {
    "our sender": "sender",
    "our sender's batches": "senders-batches",
    "public collector": "collector",
    "public collector's batches": "collectors-batches",
}
RUN_STEPS = 2_000
RUNS = 20
_DATABASE = "metrics.sqlite3*"
_EVENTS = 1_000
_DURABLE = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "128MB"}


def main() -> None:
    given = _arguments()
    if given.client:
        role, url, slug, file = given.client
        metrics_clients.act(role, url, slug, Path(file))
        return
    pin_client()
    parts = given.only or PARTS
    with tempfile.TemporaryDirectory() as name:
        figures = measure(Path(name), given, parts)
    print(json.dumps(figures))


def measure(folder: Path, given: argparse.Namespace, parts: Sequence[str]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if {"ingest", "postgresql", "peers"} & set(parts):
        run = metrics_points.record(folder, steps=RUN_STEPS)
        rows: dict[str, Sent] = {}
        print(f"a real run of {RUN_STEPS:,} steps said {len(run):,} points\n{_HEAD}")
        if "ingest" in parts:
            files, points = _files(folder, run, given.points, "ours", clients=CLIENTS)
            for row, role in OURS.items():
                rows[row] = _show(row, ours(folder / role, role, files, points), CLIENTS)
            alone = ours(folder / "alone", "sender", files[:1], points // CLIENTS)
            rows["our sender, alone"] = _show("our sender, alone", alone, 1)
            figures |= _our_figures(rows)
            figures["bytes_per_point"] = real_runs(folder / "runs", run)
        if "postgresql" in parts:
            files, points = _files(folder, run, given.points, "postgresql", clients=CLIENTS)
            figures["points_per_s_postgresql"] = round(_on_postgresql(folder / "pg", files, points).per_s)
        if "peers" in parts:
            for kind in (metrics_peers.MLflow, metrics_peers.Trackio):
                peer = kind(folder / kind.name, given.peers)
                files, points = _files(folder, run, given.peer_points, kind.name, clients=kind.clients)
                rows[peer.name] = _show(peer.name, peer.write(files, points), kind.clients)
                figures |= _reading_of(peer, given.peer_read)
            figures |= _peer_figures(rows)
    if "read" in parts:
        read = metrics_reading.measure(MetricsServer(folder / "read", is_forked=False))
        figures |= read
        print(json.dumps(read), flush=True)
    if "memory" in parts:
        figures |= metrics_memory.measure(MetricsServer(folder / "memory", is_forked=False))
    for name, value in figures.items():
        print(f"{name:>28} {value:,}")
    return figures


def ours(data: Path, role: str, files: Sequence[Path], points: int, postgres: Postgres | None = None) -> Sent:
    """Bring the points of the files to a new server of ours, each by a client of its own at the same time.

    `postgres` keeps them; its processes count as the server's. Unset: a data directory.
    """
    server = MetricsServer(data, database=None if postgres is None else postgres.url(), is_forked=False)
    server.start()
    server.stop()
    empty = _size(data, postgres)
    with on_the_servers_core():
        server.start()
    assert server.process is not None
    pid = server.process.pid
    pids = [pid] if postgres is None else [pid, postgres.pid]
    command = [sys.executable, __file__, "--client", role, server.url]
    seconds, cpu, latencies = together(
        [Client([*command, file.stem, str(file)], {"METRICS_KEY": server.key}) for file in files], *pids
    )
    rss = resident_mib(pid)
    _check(server, files[0])
    server.stop()
    return Sent(points, seconds, cpu, latencies, _size(data, postgres) - empty, rss)


def _on_postgresql(data: Path, files: Sequence[Path], points: int) -> Sent:
    """Bring the points to a server of ours over a PostgreSQL of its own, on the same core."""
    with ExitStack() as stack:
        with on_the_servers_core():
            postgres = stack.enter_context(running_postgres(_DURABLE))
        return _show("our sender, PostgreSQL", ours(data, "sender", files, points, postgres), CLIENTS)


def real_runs(data: Path, run: Sequence[Point]) -> float:
    """Return the bytes a point takes of the run as it was: copies of it, each an experiment of its own."""
    empty = _empty(data)
    server = MetricsServer(data, is_forked=False)
    with on_the_servers_core():
        server.start()
    client = MetricsClient(server.url, server.key)
    for number in range(RUNS):
        one = client.open(f"run-{number}")
        one.send(one.event("start"))
        events = [one.metric(p.name, p.value, p.step, timestampMs=p.ts_ms, meta=p.metadata) for p in run]
        for begin in range(0, len(events), _EVENTS):
            one.send(*events[begin : begin + _EVENTS])
        one.send(one.event("done"))
    client.close()
    server.stop()
    return round((size_of(data, _DATABASE) - empty) / (RUNS * len(run)), 2)


def _size(data: Path, postgres: Postgres | None) -> int:
    """Return what a stopped server's database takes on disk."""
    if postgres is None:
        return size_of(data, _DATABASE)
    ((size,),) = postgres.run("CHECKPOINT", "SELECT pg_database_size(current_database())")
    assert isinstance(size, int)
    return size


def _empty(data: Path) -> int:
    """Return what a server's database takes before anything is in it; it is made."""
    server = MetricsServer(data, is_forked=False)
    server.start()
    server.stop()
    return size_of(data, _DATABASE)


def _check(server: MetricsServer, file: Path) -> None:
    """One client's points are there, each once and bit for bit."""
    sent = metrics_points.load(file)
    client = MetricsClient(server.url, server.key)
    (found,) = client.http.get(
        "/api/v1/experiments", params={"slug": file.stem}, headers=client.authorization
    ).json()["data"]["experiments"]
    stored = client.points(found["id"])
    client.close()
    expected: dict[Any, list[Any]] = {}
    for point in sent:
        key = (point.name, tuple(sorted(point.metadata.items())))
        expected.setdefault(key, []).append((point.step, point.ts_ms, point.value))
    assert stored == expected, (
        f"{sum(map(len, stored.values())):,} of {len(sent):,} points are stored, or not the same"
    )


def _files(
    folder: Path, run: Sequence[Point], count: int, name: str, *, clients: int
) -> tuple[list[Path], int]:
    """Write a long run for each client; return the files, and how many points they hold together."""
    files, points = [], 0
    for number in range(clients):
        made = metrics_points.extended(run, count // clients, seed=number)
        files.append(folder / f"{name}-{number}.json")
        metrics_points.save(made, files[-1])
        points += len(made)
    return files, points


_HEAD = (
    f"{'':>28} {'clients':>7} {'points':>9} {'points/s':>9} {'CPU s/M points':>15} {'busy':>5}"
    f" {'bytes/point':>12} {'p50 ms':>7} {'p99 ms':>7} {'MiB':>5}"
)


def _show(name: str, sent: Sent, clients: int) -> Sent:
    print(
        f"{name:>28} {clients:>7} {sent.points:>9,} {sent.per_s:>9,.0f} {_us(sent):>15.2f}"
        f" {sent.cpu_s / sent.seconds:>5.2f} {sent.size_bytes / sent.points:>12.2f}"
        f" {sent.latency_ms(0.5):>7.1f} {sent.latency_ms(0.99):>7.1f} {sent.rss_mib:>5.0f}",
        flush=True,
    )
    return sent


def _us(sent: Sent) -> float:
    """Return the server's CPU microseconds a point, which is seconds a million."""
    return 1e6 * sent.cpu_s / sent.points


def _our_figures(rows: dict[str, Sent]) -> dict[str, Any]:
    sender, batches = rows["our sender"], rows["our sender's batches"]
    foreign, foreign_batches = rows["public collector"], rows["public collector's batches"]
    return {
        "points_per_s": round(sender.per_s),
        "points_per_s_batches": round(batches.per_s),
        "points_per_s_alone": round(rows["our sender, alone"].per_s),
        "points_per_s_foreign": round(foreign.per_s),
        "points_per_s_foreign_batches": round(foreign_batches.per_s),
        "cpu_us_per_point": round(_us(sender), 2),
        "cpu_us_per_point_foreign": round(_us(foreign), 2),
        "batch_p50_ms": round(sender.latency_ms(0.5), 1),
        "batch_p99_ms": round(sender.latency_ms(0.99), 1),
        "bytes_per_point_foreign": round(foreign.size_bytes / foreign.points, 2),
    }


def _peer_figures(rows: dict[str, Sent]) -> dict[str, Any]:
    mlflow, trackio = rows["MLflow"], rows["Trackio"]
    figures: dict[str, Any] = {
        "points_per_s_mlflow": round(mlflow.per_s), "points_per_s_trackio": round(trackio.per_s)
    }  # fmt: skip
    if "our sender" in rows:
        sender, batches = rows["our sender"], rows["our sender's batches"]
        figures |= {
            "over_mlflow": round(sender.per_s / mlflow.per_s, 1),
            "over_mlflow_batches": round(batches.per_s / mlflow.per_s, 1),
            "over_mlflow_cpu": round(_us(mlflow) / _us(sender), 1),
            "over_trackio": round(sender.per_s / trackio.per_s, 1),
            "over_trackio_cpu": round(_us(trackio) / _us(sender), 1),
        }
    return figures


def _reading_of(peer: Peer, points: int) -> dict[str, Any]:
    told = peer.read(points)
    assert told["points"] == points, told
    name = peer.name.lower()
    return {f"read_s_{name}": round(told["read_s"], 2), f"chart_ms_{name}": round(told["chart_ms"])}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--points", type=int, default=400_000)
    parser.add_argument("--peer-points", type=int, default=40_000)
    parser.add_argument(
        "--peer-read", type=int, default=1_000_000, help="points of the series read from the peers"
    )
    parser.add_argument(
        "--peers", type=Path, default=metrics_peers.PYTHON, help="Python of their environment"
    )
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
