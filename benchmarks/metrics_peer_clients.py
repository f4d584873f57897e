"""MLflow and Trackio, server and client sides: runs in the environment of theirs, without any of our code.

Each client says `ready`, waits for a line, sends the points of a file, and tells the times of its calls as
JSON.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from itertools import groupby
from typing import Any

MLFLOW_BATCH = 1_000
"""Metrics in one `log_batch`: the most that the server takes."""
TRACKIO_BATCH = 500
"""Steps in one `bulk_log`: what Trackio's own synchronisation sends."""


def mlflow_write(url: str, slug: str, file: str) -> None:
    """Log everything with `MlflowClient.log_batch`."""
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=url)
    run = client.create_run("0", run_name=slug).info.run_id
    metrics = [
        Metric(_key(name, metadata), value, ts_ms, step) for name, metadata, step, ts_ms, value in _load(file)
    ]
    client.log_batch(run, metrics=metrics[:1])  # the first call connects and looks the store up
    latencies = []
    _wait_to_go()
    for at in range(1, len(metrics), MLFLOW_BATCH):
        began = time.perf_counter()
        client.log_batch(run, metrics=metrics[at : at + MLFLOW_BATCH])
        latencies.append(1_000 * (time.perf_counter() - began))
    print(json.dumps({"latencies_ms": latencies, "run": run}))


def mlflow_read(url: str, run: str, key: str) -> None:
    """Read a series whole, and as the chart of the user interface asks for it."""
    import requests
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=url)
    _wait_to_go()
    began = time.perf_counter()
    count = len(client.get_metric_history(run, key))
    read_s, began = time.perf_counter() - began, time.perf_counter()
    path = f"{url}/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval"
    asked = requests.get(path, params={"run_ids": run, "metric_key": key, "max_results": "1000"}, timeout=300)
    asked.raise_for_status()
    chart_ms = 1_000 * (time.perf_counter() - began)
    print(json.dumps({"latencies_ms": [], "points": count, "read_s": read_s, "chart_ms": chart_ms}))


def trackio_serve(port: str) -> None:
    """Serve Trackio's dashboard and API."""
    import trackio

    trackio.show(host="127.0.0.1", server_port=int(port), open_browser=False, block_thread=True)


def trackio_write(url: str, slug: str, file: str) -> None:
    """Log everything with the server's `bulk_log`, a row a step, as Trackio's own clients do."""
    from trackio.remote_client import RemoteClient

    client = RemoteClient(url, write_token="benchmark")
    logs: list[dict[str, Any]] = []
    for step, points in groupby(_load(file), key=lambda point: point[2]):
        metrics = {_key(name, metadata): value for name, metadata, _, _, value in points}
        logs.append(
            {
                "project": "bench",
                "run": slug,
                "run_id": slug,
                "metrics": metrics,
                "step": step,
                "config": None,
            }
            | {"log_id": uuid.uuid4().hex}
        )
    client.predict(api_name="/bulk_log", logs=logs[:1], hf_token=None)  # makes the project's database
    latencies = []
    _wait_to_go()
    for at in range(1, len(logs), TRACKIO_BATCH):
        began = time.perf_counter()
        client.predict(api_name="/bulk_log", logs=logs[at : at + TRACKIO_BATCH], hf_token=None)
        latencies.append(1_000 * (time.perf_counter() - began))
    print(json.dumps({"latencies_ms": latencies}))


def trackio_fill(slug: str, count: str) -> None:
    """Fill a project's database directly, with the store's own call."""
    from trackio.sqlite_storage import SQLiteStorage

    for begin in range(0, int(count), 50_000):
        steps = list(range(begin, min(begin + 50_000, int(count))))
        SQLiteStorage.bulk_log("long", slug, [{"loss": step / 7} for step in steps], steps=steps, run_id=slug)


def trackio_read(url: str, run: str, key: str) -> None:
    """Read a series whole, and as a chart of 1,000 points."""
    from trackio.remote_client import RemoteClient

    client = RemoteClient(url, write_token="benchmark", httpx_kwargs={"timeout": 300})
    _wait_to_go()

    def ask(max_points: int | None) -> list[Any]:
        return list(
            client.predict(
                api_name="/get_metric_values", project="long", run=run, metric_name=key,
                run_id=run, max_points=max_points,
            )
        )  # fmt: skip

    began = time.perf_counter()
    count = len(ask(None))
    read_s, began = time.perf_counter() - began, time.perf_counter()
    ask(1_000)
    chart_ms = 1_000 * (time.perf_counter() - began)
    print(json.dumps({"latencies_ms": [], "points": count, "read_s": read_s, "chart_ms": chart_ms}))


def main() -> None:
    name, *arguments = sys.argv[1:]
    {
        each.__name__: each
        for each in (mlflow_write, mlflow_read, trackio_serve, trackio_write, trackio_fill, trackio_read)
    }[name](*arguments)


def _load(file: str) -> list[Any]:
    with open(file, encoding="utf-8") as opened:  # noqa: PTH123 - as plain as the peers' side can be
        return list(json.load(opened))


def _key(name: str, metadata: dict[str, str]) -> str:
    """Their metrics have a name alone."""
    return "/".join((*(metadata[part] for part in ("split", "pass") if part in metadata), name))


def _wait_to_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
