"""Runs of checkpoints that are killed: one process imports torch, and forks one child per plan.

Started as `python -m tests.support.killed_run LOCATION`. A line of JSON in: {"name", "plan", "steps"}; a line
out: {"status": how the child ended, "told": the steps it was told are published}. A fork is safe here since
nothing has been computed and one thread runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from runtime.checkpoints.location import open_store
from runtime.events.targets import Backlog, Segment
from tests.support.checkpoints import begin, saver_of, state
from tests.support.faults import FaultPlan, FaultyStore
from tests.support.stores import below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from runtime.checkpoints.local import LocalStore
    from runtime.checkpoints.s3 import S3Store
    from runtime.checkpoints.store import Store


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit code, or minus the signal; and what it was told is published."""

    status: int
    told: list[int]


class KilledRuns:
    """The process that forks; ask it with `run`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, name: str, plan: FaultPlan, steps: Sequence[int]) -> Ended:
        """One attempt at the location `name`, below that of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"name": name, "plan": asdict(plan), "steps": list(steps)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


@contextmanager
def killed_runs(location: str, env: Mapping[str, str]) -> Iterator[KilledRuns]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_run", location],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    ) as process:
        yield KilledRuns(process)
        assert process.stdin is not None
        process.stdin.close()


def run_to_the_end(store: Store, steps: Sequence[int], told: Any) -> None:
    """An attempt that saves at each of `steps` beyond where it begins, with unsent events, and ends."""
    attempt = begin(store)
    inherited = [segment.name for segment in attempt.segments()]
    saver = saver_of(attempt, shard_bytes=1000, workers=1)
    for step in (step for step in steps if step > attempt.started_from):
        segment = Segment(f"{attempt.session}.{step}", f"events up to {step}".encode())
        backlog = Backlog(segment, (*inherited, segment.name))
        assert saver.save(step, state(step), {"step": step}, lambda: backlog, lambda one: told(one.step))  # noqa: B023
        saver.wait()
    attempt.end("done", steps[-1])


def _be_killed(above: LocalStore | S3Store, order: dict[str, Any], told: int) -> NoReturn:
    torch.set_num_threads(1)
    plan = FaultPlan(**order["plan"] | {"operations": tuple(order["plan"]["operations"])})
    store = FaultyStore(below(above, order["name"]), plan)
    run_to_the_end(store, order["steps"], lambda step: os.write(told, b"%d\n" % step))
    os._exit(0)


def _main() -> None:
    above: Any = open_store(sys.argv[1], os.environ)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _be_killed(above, order, writing)
        os.close(writing)
        with os.fdopen(reading) as told:
            steps = [int(step) for step in told]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(json.dumps({"status": status, "told": steps}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
