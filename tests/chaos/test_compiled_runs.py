"""Compiled on two threads: without deterministic algorithms such a run does not even repeat itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.faults import FaultPlan
from tests.support.forge import ROOT, Forge
from tests.support.runs import SmallRun

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


def run(small: SmallRun, cache: Path, plan: FaultPlan | None = None) -> int:
    env = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.faults", *small.arguments("--knob", "compile=true")]
    variables = {**os.environ, **env, **(plan.env() if plan else {})}
    return subprocess.run(command, cwd=small.folder, env=variables, check=False).returncode


@pytest.mark.parametrize("cache_is_kept", [True, False])
def test_a_compiled_run_that_is_killed_ends_with_the_same_bits(
    forge: Forge, tmp_path: Path, *, cache_is_kept: bool
):
    unbroken = SmallRun(forge, tmp_path / "unbroken")
    assert run(unbroken, tmp_path / "cache") == 0
    killed = SmallRun(forge, tmp_path / "killed")
    plan = FaultPlan(key="run.json").kill_at(2, "after")  # its first checkpoint has just been published
    assert run(killed, tmp_path / "cache", plan) == -signal.SIGKILL
    assert run(killed, tmp_path / ("cache" if cache_is_kept else "another")) == 0
    killed.outcome().assert_equals(unbroken.outcome())
