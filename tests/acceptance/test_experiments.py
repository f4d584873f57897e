"""An experiment file that ships with us, trained by the real command."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

SEXPGPU = Path(sys.executable).with_name("sexpgpu")
DIGITS = Path(__file__).parents[2] / "flows" / "experiments" / "digits.py"


def test_digits_reaches_97_percent_of_held_out_pictures_in_a_minute_of_two_cores(tmp_path: Path):
    pytest.importorskip("sklearn")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    events = tmp_path / "events.jsonl"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(SEXPGPU), "run", str(DIGITS), "--metrics", f"jsonl:{events}"]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    held_out = [line for line in lines if line.get("name") == "accuracy" and "pass" in line["metadata"]]
    assert held_out[-1]["step"] == 600
    assert held_out[-1]["value"] >= 0.97
    assert after.ru_utime - before.ru_utime < 60
