"""runtime.cli.main: what a run says of itself before it starts."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.docs import ROOT

SEXPGPU = Path(sys.executable).with_name("sexpgpu")


def warnings(folder: Path, *flags: str) -> list[str]:
    done = subprocess.run(
        [SEXPGPU, "run", ROOT / "flows/experiments/digits.py", "--steps=1", "--device=cpu", *flags],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stderr.splitlines() if line.startswith("WARNING")]


def test_a_run_that_keeps_nothing_says_so_and_names_the_flag(tmp_path):
    assert warnings(tmp_path) == [
        "WARNING: nothing of this run is kept: --location names where its checkpoints go"
    ]
    assert warnings(tmp_path, "--location", str(tmp_path / "at")) == []
