"""`div telemetry` from its start to its end, with a real server: 200,000 points in every form, and one."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.metrics_processes import on_the_servers_core
from runtime.telemetry.rules import MAX_RUN_POINTS
from tests.support.metrics_server import MetricsClient, MetricsServer
from tests.support.rest import Rest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["measure"]

ROUNDS = 7
FORMS = {
    "the table of every key": [],
    "step and loss, with tabs": ["loss"],
    "every key, as CSV": ["--csv"],
    "as JSON": ["--json"],
    "followed to its end, as JSON": ["--json", "-f"],
}
STARTS = {
    "div --help": ["div", "--help"],
    "div telemetry, of one point": ["div", "telemetry", "short"],
    "div show": ["div", "show", "short"],
    "div list": ["div", "list"],
    "syvain-metrics experiment list": ["syvain-metrics", "experiment", "list"],
}
_BATCH = 10_000
_BY_HAND = """
import csv, json, sys
points = [json.loads(line) for line in open(sys.argv[1])]
keys = list(dict.fromkeys(key for point in points for key in point))
csv.writer(sys.stdout).writerows([keys, *([point.get(key, "") for key in keys] for point in points)])
"""
"""What somebody would write for a file on this host, without any server."""


def measure(folder: Path) -> dict[str, float]:
    """Return the figures: the slowest form's seconds, and the slowest start's."""
    points = _points(MAX_RUN_POINTS)
    file = folder / "points.jsonl"
    file.write_text("".join(json.dumps(point) + "\n" for point in points))
    server = MetricsServer(folder / "metrics", is_forked=False)
    with on_the_servers_core():
        server.start()
    try:
        _fill(server, "long", points)
        _fill(server, "short", points[:1])
        env = os.environ | {"O41_METRICS_HOST": server.url, "O41_METRICS_API_KEY": server.key}
        printed = {
            what: _seconds(what, ["div", "telemetry", "long", *arguments], env, folder)
            for what, arguments in FORMS.items()
        }
        by_hand = _seconds(
            "a script over the file: CSV", [sys.executable, "-c", _BY_HAND, str(file)], env, folder
        )
        started = {what: _seconds(what, command, env, folder) for what, command in STARTS.items()}
    finally:
        server.stop()
    return {
        "print_s": max(printed.values()),
        "print_by_hand_s": by_hand,
        "startup_s": max(started.values()),
    }


def _points(count: int) -> list[dict[str, float]]:
    draw = random.Random(7)
    points: list[dict[str, float]] = []
    for step in range(count):
        loss = 2.3 / (1 + step / 500) ** 0.5 + draw.gauss(0, 0.02)
        point = {
            "step": step,
            "loss": loss,
            "lr": 3e-4 * (1 - step / count),
            "grad_norm": draw.lognormvariate(0, 1),
        }
        if step % 100 == 0:
            point["eval.loss"] = loss + 0.1
        points.append(point)
    return points


def _fill(server: MetricsServer, name: str, points: Sequence[Mapping[str, float]]) -> None:
    client = MetricsClient(server.url, server.key)
    rest = Rest(client)
    rest.ask("POST", "/runs", {"slug": name})
    for begin in range(0, len(points), _BATCH):
        batch = {"attempt": 1, "after_seq": begin, "points": points[begin : begin + _BATCH]}
        rest.ask("POST", f"/runs/{name}/telemetry", batch)
    rest.ask("PATCH", f"/runs/{name}", {"state": "done", "attempt": 1})
    client.close()


def _seconds(what: str, command: Sequence[str], env: Mapping[str, str], folder: Path) -> float:
    """Return the median of a process's time from start to end; what it prints goes to a file."""
    program = command[0] if "/" in command[0] else str(Path(sys.executable).with_name(command[0]))
    took = []
    out = folder / "out"
    for _ in range(ROUNDS):
        with out.open("wb") as file:
            began = time.perf_counter()
            subprocess.run([program, *command[1:]], env=env, stdout=file, check=True)
            took.append(time.perf_counter() - began)
    seconds = round(statistics.median(took), 3)
    print(
        f"{what:>32} {seconds:>7.3f} s ({min(took):.3f} to {max(took):.3f}), {out.stat().st_size:,} bytes",
        flush=True,
    )
    return seconds
