"""What the tests of flows are told by: a stack's own processes, by their whole arguments."""

from __future__ import annotations

import sys

from tests.support.prefect_stack import PrefectStack
from tests.support.waiting import wait_until


def test_a_stack_finds_its_processes_by_whole_arguments_and_none_of_another_run_or_stack(tmp_path):
    ours, other = PrefectStack(tmp_path / "ours", 1), PrefectStack(tmp_path / "other", 1)
    runs = [(stack, slug) for stack in (ours, other) for slug in ("cancelled", "cancelled-resumed")]
    try:
        for stack in (ours, other):
            stack.home.mkdir()
        wait = ["-c", "import signal; print('here', flush=True); signal.pause()"]
        started = {
            (stack.home.name, slug): stack.spawn([*wait, f"--slug={slug}"], slug) for stack, slug in runs
        }
        # The kernel shows no arguments of a process that is just becoming another program.
        wait_until(lambda: all("here" in stack.log(slug) for stack, slug in runs), within_s=60)
        assert ours.pids("--slug=cancelled") == [started["ours", "cancelled"].pid]
        assert ours.pids(sys.executable, "--slug=cancelled-resumed") == [
            started["ours", "cancelled-resumed"].pid
        ]
        assert ours.pids("--slug") == ours.pids("--slug=cancelled-") == []
    finally:
        for stack in (ours, other):
            stack.close()
    assert ours.pids() == other.pids() == []
