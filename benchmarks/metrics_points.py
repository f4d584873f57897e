"""The points that `metrics_server.py` measures with: those of a real run, and longer runs made from them.

The run is the digits experiment: what it says in a step is a loss, an accuracy, a gradient norm, a learning
rate and a throughput, at the milliseconds at which it really said them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Point", "extended", "load", "record", "save"]

ROOT = Path(__file__).parents[1]
EXPERIMENT = ROOT / "flows" / "experiments" / "digits.py"


class Point(NamedTuple):
    """One value, as a run says it."""

    name: str
    metadata: dict[str, str]
    step: int
    ts_ms: int
    value: float


def record(folder: Path, *, steps: int) -> list[Point]:
    """Train for some seconds and return what the run said, in its order."""
    file = folder / "run.jsonl"
    subprocess.run(
        [
            sys.executable, "-c", "import sys; from runtime.cli.main import main; sys.exit(main())",
            "run", str(EXPERIMENT), "--slug", "recorded", "--steps", str(steps),
            "--knob", "channels=8", "--knob", f"checkpoint_every={steps}",
            "--location", str(folder / "location"), "--metrics", f"jsonl:{file}",
        ],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    events = [json.loads(line) for line in file.read_bytes().splitlines()]
    return [
        Point(event["name"], event["metadata"], event["step"], event["ts_ms"], event["value"])
        for event in events
        if event["kind"] == "metric" and event["value"] is not None
    ]


def extended(run: Sequence[Point], count: int, *, seed: int) -> list[Point]:
    """Return a run of at least `count` points that goes on like `run`, up to the end of a step.

    The recorded steps come again and again with new step numbers; the time between two is one of the recorded
    ones. A value gets a relative noise of 1 %, at the precision at which it was born, so that no number comes
    again that a real run would not say again; values of a metric that has few (an accuracy) are drawn from
    those recorded. None of this makes them easier to compress.
    """
    rng = random.Random(seed)
    steps = [list(points) for _, points in groupby(run, key=lambda point: point.step)]
    gaps = [later[0].ts_ms - earlier[0].ts_ms for earlier, later in pairwise(steps)]
    draws = _draws(run, rng)
    made: list[Point] = []
    step, at_ms = 0, steps[0][0].ts_ms
    while len(made) < count:
        for points in steps:
            for point in points:
                value = draws[_series(point)](point.value)
                made.append(
                    Point(point.name, point.metadata, step, at_ms + point.ts_ms - points[0].ts_ms, value)
                )
            step += 1
            at_ms += rng.choice(gaps)
            if len(made) >= count:
                break
    return made


def save(points: Sequence[Point], file: Path) -> None:
    """Write points where another process, of any environment, loads them."""
    file.write_bytes(orjson.dumps([tuple(point) for point in points]))


def load(file: Path) -> list[Point]:
    """Read points that `save` wrote."""
    return [Point(*columns) for columns in orjson.loads(file.read_bytes())]


def _series(point: Point) -> tuple[str, str]:
    return point.name, json.dumps(point.metadata, sort_keys=True)


def _draws(run: Sequence[Point], rng: random.Random) -> dict[tuple[str, str], Callable[[float], float]]:
    """Return for each series how a value of a later step comes from a recorded one."""
    values: dict[tuple[str, str], list[float]] = {}
    for point in run:
        values.setdefault(_series(point), []).append(point.value)

    def few(recorded: list[float]) -> Callable[[float], float]:
        return lambda _: rng.choice(recorded)

    def single(value: float) -> float:
        return float(np.float32(value * (1 + rng.gauss(0, 0.01))))

    def double(value: float) -> float:
        return value * (1 + rng.gauss(0, 0.01))

    found: dict[tuple[str, str], Callable[[float], float]] = {}
    for series, recorded in values.items():
        if len(set(recorded)) < len(recorded) / 2:
            found[series] = few(recorded)
        else:
            found[series] = single if all(value == np.float32(value) for value in recorded) else double
    return found
