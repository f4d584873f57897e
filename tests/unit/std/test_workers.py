from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from runtime.errors import Rejected
from runtime.experiment.model import Batch
from runtime.std.workers import Workers
from tests.support.generators import generators

if TYPE_CHECKING:
    from collections.abc import Callable


class Noisy:
    """A loader that draws from every global generator, and says in which process."""

    def batch(self, index: int) -> Batch:
        if index == 13:
            raise ZeroDivisionError("thirteen")
        noise = torch.rand(3) + random.random() + float(np.random.random())  # noqa: NPY002 - the shared one
        return Batch({"index": index, "noise": noise, "half": noise.bfloat16(), "pid": os.getpid()}, 1)


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends while it is read
        return False
    return state != "Z"


def pids(workers: Workers) -> list[int]:
    return [worker.process.pid or 0 for worker in workers._pool]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_batches_are_equal_for_every_number_of_processes(processes: int):
    """Resumes jump: forth, back, and to the same batch again."""
    here, there = Workers(Noisy(), processes=0), Workers(Noisy(), processes=processes)
    for index in [0, 1, 2, 3, 40, 41, 5, 5, 6, 0]:
        expected, got = here.batch(index).data, there.batch(index).data
        assert got["index"] == index
        assert torch.equal(got["noise"], expected["noise"])
        assert torch.equal(got["half"], expected["half"])
        assert got["pid"] != os.getpid()


@pytest.mark.parametrize("processes", [0, 2])
def test_no_generator_of_this_process_is_touched(processes: int):
    torch.manual_seed(3)
    before = generators()
    workers = Workers(Noisy(), processes=processes)
    for index in range(3):
        workers.batch(index)
    assert generators() == before


def test_signals_to_the_whole_group_leave_the_workers_at_work():
    workers = Workers(Noisy(), processes=2)
    workers.batch(0)
    for pid in pids(workers):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert [workers.batch(index).data["index"] for index in range(1, 9)] == list(range(1, 9))


def test_an_error_of_the_loader_is_raised_here_with_its_traceback():
    workers = Workers(Noisy(), processes=2)
    with pytest.raises(
        RuntimeError, match="a loader worker failed at batch 13: ZeroDivisionError: thirteen"
    ) as failed:
        workers.batch(13)
    assert "in batch" in failed.value.__notes__[0]
    assert workers.batch(14).data["index"] == 14


def test_a_file_that_a_worker_does_not_find_is_a_missing_file_here():
    """It may be there on another machine: whoever asks must be able to tell it from a mistake."""

    class Reader:
        def batch(self, index):
            return Batch(Path("/nowhere/corpus.bin").read_bytes(), index)

    with pytest.raises(FileNotFoundError, match="a loader worker failed at batch 3: FileNotFound") as failed:
        Workers(Reader(), processes=1).batch(3)
    assert failed.value.filename == "/nowhere/corpus.bin"
    assert "in batch" in failed.value.__notes__[0]


@pytest.mark.parametrize("index", [1, 40])
def test_a_killed_worker_is_an_error_that_says_so_also_at_a_jump(index: int):
    workers = Workers(Noisy(), processes=1)
    workers.batch(0)
    os.kill(pids(workers)[0], signal.SIGKILL)
    wait_for(lambda: not lives(pids(workers)[0]))

    def read_on() -> None:
        for upcoming in range(index, index + 4):  # what was drawn ahead may still be received
            workers.batch(upcoming)

    with pytest.raises(RuntimeError, match="ended with exit code -9"):
        read_on()


def test_workers_end_with_the_last_reference():
    workers = Workers(Noisy(), processes=2)
    workers.batch(0)
    started = pids(workers)
    del workers
    assert not any(map(lives, started))


PARENT = """
import sys, time
from runtime.experiment.model import Batch
from runtime.std.workers import Workers
from tests.support.generators import generators

class Slow:
    def batch(self, index):
        if index:
            time.sleep(600)
        return Batch([], 1)

workers = Workers(Slow(), processes=2)
workers.batch(0)
print(*[worker.process.pid for worker in workers._pool], flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["wait", "exit"])
def test_workers_in_the_middle_of_a_batch_die_with_their_parent(ending: str):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, ending], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        started = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(started) == 2
        if ending == "wait":
            parent.kill()
        assert parent.wait(timeout=60) == (-signal.SIGKILL if ending == "wait" else 0)
    wait_for(lambda: not any(map(lives, started)))


def test_bad_numbers_are_refused():
    with pytest.raises(Rejected, match="processes >= 0 and ahead >= 1, got -1 and 2"):
        Workers(Noisy(), processes=-1)
