"""What Slugline costs: everything on against the bare PyTorch loop of the same model, data and steps.

All live at once and take turns of five steps, so that a machine which grows slower for a second slows all of
them down: ours between two bare loops, and what it takes is over the mean of theirs; how far those two are
apart, by the same median, is what this run cannot tell. A round is 100 steps of each, one checkpoint in it.
Every two rounds new processes begin: how the memory of each happens to lie makes it faster or slower than
another by a percent or two, which only many of them even out.
Pinned, the compute of each has one core and everything else the other, as a GPU leaves the CPU free; a
checkpoint to a local directory, a JSONL file, a telemetry file and the Metrics server are on.

The last line is JSON: `slowdown`, `slowdown_s3`, `metric_us`, and `floor` and `floor_s3`, how much
slower or faster than the first bare loop the second one came out.

    python benchmarks/overhead.py [--rounds 24]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runtime.events.kinds import Point

COMPUTE, REST = 0, 1
FILE = Path(__file__).with_name("overhead_experiment.py")
DRAIN_S = 0.05
DRAIN_CHECKPOINT_S = 0.5
EACH = 2  # rounds
# glibc gives freed memory back after a step and faults it in again in the next, or not, as it happens to lie
# in each process: 300 to 900 faults a step, 3 to 5 % of its time, and fewer in ours, which holds more.
SAME_FOR_ALL = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


@dataclass
class Turns:
    """One of the loops, let through its gate a turn at a time."""

    process: subprocess.Popen[bytes]
    open_end: int
    told_end: int

    def turn(self) -> float:
        """Let one turn through and return its seconds."""
        os.write(self.open_end, b"!")
        return self._told()

    def arrived(self) -> None:
        """Wait until the process stands at its first gate."""
        self._told()

    def _told(self) -> float:
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(self.told_end, 64)
            assert part, f"the loop ended with {self.process.wait()}"
            line += part
        return float(line)


@contextmanager
def turns(role: str, *arguments: str, pinned: bool, env: Mapping[str, str]) -> Iterator[Turns]:
    """Start this script in a role; at the end it is killed, since its last turn has been timed."""
    gate_reader, open_end = os.pipe()
    told_end, gate_writer = os.pipe()
    variables = {"OVERHEAD_GATE": f"{gate_reader},{gate_writer}", **SAME_FOR_ALL, **env}
    process = subprocess.Popen(
        [sys.executable, __file__, "--role", role, *(["--pinned"] if pinned else []), "--", *arguments],
        env=os.environ | variables,
        pass_fds=(gate_reader, gate_writer),
        stdout=subprocess.DEVNULL,
        stderr=None if "OVERHEAD_VERBOSE" in os.environ else subprocess.DEVNULL,
        cwd=ROOT,
    )
    os.close(gate_reader)
    os.close(gate_writer)
    try:
        yield Turns(process, open_end, told_end)
    finally:
        process.kill()
        process.wait()
        os.close(open_end)
        os.close(told_end)


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of 100 steps of each: a bare loop, ours, and another bare loop."""

    bare: float
    ours: float
    bare_again: float

    @property
    def slower(self) -> float:
        """Ours over what the bare loops took before and after it, minus one."""
        return 2 * self.ours / (self.bare + self.bare_again) - 1

    @property
    def apart(self) -> float:
        """The second bare loop over the first, minus one: nothing but noise."""
        return self.bare_again / self.bare - 1


def compare(folder: Path, location: str, *, rounds: int, pinned: bool, env: Mapping[str, str]) -> list[Round]:
    """Let the three take turns, in new processes every few rounds."""
    from benchmarks.overhead_experiment import BLOCK

    print(f"{'round':>5} {'bare ms/step':>13} {'ours':>8} {'bare again':>11} {'slower %':>9} {'apart %':>8}")
    measured: list[Round] = []
    while len(measured) < rounds:
        slug = f"{'pinned' if pinned else 'free'}-{len(measured)}"
        ours = (
            "run", str(FILE), "--slug", slug, "--steps", str((EACH + 2) * BLOCK),
            "--location", f"{location}/{slug}",
            "--metrics", f"jsonl:{folder / slug}.jsonl", "--metrics", "syvain",
        )  # fmt: skip
        telemetry = {"DIVERGENT_TELEMETRY_PATH": f"{folder / slug}.telemetry.jsonl"}
        measured += _rounds(ours, number=len(measured), pinned=pinned, env={**env, **telemetry})
    return measured


def _rounds(ours: tuple[str, ...], *, number: int, pinned: bool, env: Mapping[str, str]) -> list[Round]:
    """The rounds of one set of processes; the first round only warms up."""
    from benchmarks.overhead_experiment import BLOCK

    measured = []
    with ExitStack() as stack:
        bare, bare_again = (stack.enter_context(turns("bare", pinned=pinned, env=env)) for _ in range(2))
        our = stack.enter_context(turns("ours", *ours, pinned=pinned, env=env))
        for one in (bare, bare_again, our):
            one.arrived()
        for warm in range(EACH + 1):
            this = _round([bare, our, bare_again])
            if warm:
                measured.append(this)
                print(_line(number + warm, this, 1000 / BLOCK), flush=True)
    return measured


def _round(loops: list[Turns]) -> Round:
    """Turns of each until all have done their 100 steps, ours always between the others."""
    from benchmarks.overhead_experiment import BLOCK, TURN

    seconds = [0.0, 0.0, 0.0]
    for turn in range(BLOCK // TURN):
        for place in (0, 1, 2) if turn % 2 else (2, 1, 0):
            seconds[place] += loops[place].turn()
            # What ours left to do in the background must not slow a bare loop down.
            time.sleep(DRAIN_S if turn else DRAIN_CHECKPOINT_S)
    return Round(*seconds)


def _line(number: int, one: Round, ms: float) -> str:
    return (
        f"{number:>5} {ms * one.bare:>13.3f} {ms * one.ours:>8.3f} {ms * one.bare_again:>11.3f} "
        f"{100 * one.slower:>9.2f} {100 * one.apart:>8.2f}"
    )


def be_bare() -> None:
    """The loop that one would write by hand: nothing logged, nothing saved."""
    import torch

    from benchmarks import overhead_experiment as file

    model = file.make_model()
    optimizer = file.make_optimizer(model)
    windows = file.Windows(file.Gate())
    step = 0
    while True:
        tokens = windows.batch(step).data
        file.loss(model, tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), file.CLIP_NORM)
        for group in optimizer.param_groups:
            group["lr"] = file.learning_rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1


def pin() -> None:
    """This thread to one core, every thread that begins later to the other."""
    run = threading.Thread.run

    def on_the_other_core(thread: threading.Thread) -> None:
        os.sched_setaffinity(0, {REST})
        run(thread)

    threading.Thread.run = on_the_other_core  # type: ignore[assignment] # every library's threads too
    os.sched_setaffinity(0, {COMPUTE})


def metric_us() -> float:
    """One `metric` call with a tensor, its share of the hand-over of a step of ten included.

    By the thread's own clock, while the stream's thread stands still: what that one does later fits into
    training's backward passes. Over some seconds: from one to the next the machine is faster by half.
    """
    import torch

    from runtime.events.stream import EventStream
    from runtime.events.targets import MemoryTarget
    from runtime.training.metrics import Collector, Pending, collecting, metric

    torch.set_num_threads(1)
    collector, value = Collector({"split": "train", "stage": "only"}), torch.ones((), requires_grad=True) * 2
    names = [f"metric/{number}" for number in range(10)]
    took = []
    for _ in range(25):
        time.sleep(0.3)
        stream, released = EventStream([MemoryTarget()]), threading.Event()
        stream.metrics(0, partial(_nothing_after, released))
        began = time.thread_time()
        for step in range(1_000):
            with collecting(collector):
                for name in names:
                    metric(name, value, part="all")
            stream.metrics(step, Pending(collector.take()).points)
        took.append((time.thread_time() - began) / 10_000 * 1e6)
        released.set()
        stream.close(timeout_s=60)
    return statistics.median(took)


def _nothing_after(released: threading.Event) -> list[Point]:
    released.wait()
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--role", choices=["bare", "ours"], help=argparse.SUPPRESS)
    parser.add_argument("--pinned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pinned:
        pin()
    if given.role == "bare":
        be_bare()
    elif given.role == "ours":
        from runtime.cli.main import main as sexpgpu

        sys.exit(sexpgpu(given.rest))
    else:
        measure(given.rounds)


@contextmanager
def metrics(data: Path, *, cores: set[int]) -> Iterator[dict[str, str]]:
    """A Metrics server on some cores, all of its threads, as a run's environment names it."""
    from tests.support.metrics_server import MetricsServer

    server, before = MetricsServer(data, is_forked=False), os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # as those of its threads will be
    try:
        server.start()
    finally:
        os.sched_setaffinity(0, before)
    try:
        yield {"SYVAIN_METRICS_HOST": server.url, "SYVAIN_METRICS_API_KEY": server.key}
    finally:
        server.stop()


def measure(rounds: int) -> None:
    from tests.support import seaweed

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "overhead")
        folder.mkdir()
        with metrics(Path(name, "pinned"), cores={REST}) as env:
            print("one core computes, the other does the rest; checkpoints to a local directory")
            local = compare(folder, str(folder / "location"), rounds=rounds, pinned=True, env=env)
        with (
            metrics(Path(name, "free"), cores=os.sched_getaffinity(0)) as env,
            seaweed.running_server(Path(name, "weed")) as s3,
        ):
            s3.client().create_bucket(Bucket="overhead")
            print("nothing pinned, the S3 server on the same cores")
            to_s3 = compare(folder, "s3://overhead", rounds=rounds, pinned=False, env={**env, **s3.env()})
    figures = {
        "slowdown": round(statistics.median(one.slower for one in local), 4),
        "slowdown_s3": round(statistics.median(one.slower for one in to_s3), 4),
        "metric_us": round(metric_us(), 3),
        "floor": round(abs(statistics.median(one.apart for one in local)), 4),
        "floor_s3": round(abs(statistics.median(one.apart for one in to_s3)), 4),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
