"""`sexpgpu run` as the command of a run: it needs no flags, and its metrics are the run's telemetry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from runtime.checkpoints.location import open_location
from runtime.telemetry.rules import Rules
from tests.support.runs import EXPERIMENT

SEXPGPU = Path(sys.executable).with_name("sexpgpu")


def test_slug_location_and_telemetry_file_come_from_the_environment(tmp_path):
    file = tmp_path / "small.py"
    file.write_text(dedent(EXPERIMENT))
    location, telemetry = tmp_path / "checkpoints", tmp_path / "telemetry.jsonl"
    telemetry.write_bytes(b'{"step":1,"train.lo')  # a killed attempt's
    environment = {
        "SLUGLINE_SLUG": "warm-up",
        "SLUGLINE_CHECKPOINTS": str(location),
        "DIVERGENT_RUN": "warm-up",
        "DIVERGENT_TELEMETRY_PATH": str(telemetry),
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        [SEXPGPU, "run", file, "--device", "cpu", "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["slug"], summary["status"], summary["dropped"]) == ("warm-up", "done", 0)
    record = open_location(str(location), {}).record()
    assert record is not None
    assert record.slug == "warm-up"
    rules = Rules()
    points = [rules.take(line) for line in telemetry.read_bytes().splitlines()]
    kept = [point for point in points if point is not None]
    assert rules.dropped == {"not_json": 1}
    assert [point["step"] for point in kept if "train.loss" in point] == list(range(12))
    evaluated = [point["step"] for point in kept if any(key.startswith("eval.") for key in point)]
    assert evaluated == sorted(evaluated)
    assert evaluated[-1] == 12
