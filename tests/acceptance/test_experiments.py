"""Experiment files trained by the real command: those that ship with us, and one with loader workers."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.experiments import SMALL, write_project

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


def test_a_signal_to_the_whole_group_reaches_the_workers_first_and_the_step_is_still_saved(tmp_path: Path):
    """A terminal's Ctrl-C, or a cancelled job, signals every process of the group at once."""
    source = SMALL.replace("optim\n", "data, optim\n", 1).replace(
        "Ones()", "data.Workers(Ones(), processes=2)"
    )
    experiment = write_project(tmp_path, {"small.py": source.replace("int = 8", "int = 1_000_000")})
    events = tmp_path / "events.jsonl"
    command = [str(SEXPGPU), "run", str(experiment), "--slug=group", f"--location={tmp_path / 'kept'}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [*command, f"--metrics=jsonl:{events}"],
        env=environment,
        stderr=subprocess.DEVNULL,
        process_group=0,
    ) as run:
        deadline = time.monotonic() + 60
        while not (events.exists() and b"train/loss" in events.read_bytes()):
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.05)
        os.killpg(run.pid, signal.SIGTERM)
        assert run.wait(timeout=30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)  # no worker is left
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    # A checkpoint that was due at that very boundary may still be stored in between.
    (interrupted,) = [line for line in lines if line.get("metadata", {}).get("signal")]
    assert interrupted["annotation"] == f"interrupted by SIGTERM at step {interrupted['step']}"
    assert lines.index(interrupted) < len(lines) - 1
    assert lines[-1]["annotation"].endswith(f"/step-{interrupted['step']:08d}")
