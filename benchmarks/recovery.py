"""How long a killed run takes to its first new step, beyond what any process needs to start and to load.

A run is killed with SIGKILL and goes on: started again at once by hand, and under Prefect, where the flow
process notices and starts the next attempt. Against it, a script by hand that starts Python and torch, makes
the same model, reads the same state with `torch.load` and takes one step. In turns, the median. The last line
is JSON: `extra_s` without Prefect, `extra_prefect_s` with it.

    python benchmarks/recovery.py [--rounds 7]
"""

# ruff: noqa: D102 - what a method of `Run` returns stands there
from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

FILE = Path(__file__).with_name("overhead_experiment.py")
SLUG = "recovery"
STEPS = 1_000_000
SEXPGPU = "import sys; from runtime.cli.main import main; sys.exit(main())"


def by_hand(state: Path) -> None:
    """The least that has to happen before a next step."""
    import torch

    from benchmarks import overhead_experiment as file

    model = file.make_model()
    optimizer = file.make_optimizer(model)
    if state.exists():
        saved = torch.load(state, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    tokens = file.Windows(file.Gate()).batch(1).data
    file.loss(model, tokens).backward()
    optimizer.step()
    print(time.time(), flush=True)
    if not state.exists():
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, state)


def start_by_hand(state: Path) -> float:
    """Seconds from starting the script to its first step's end."""
    began = time.time()
    out = subprocess.run(
        [sys.executable, __file__, "--by-hand", str(state)], check=True, stdout=subprocess.PIPE, cwd=ROOT
    ).stdout
    return float(out) - began


class Run(ABC):
    """One slug that is killed and goes on; what happened when is read from its events."""

    def __init__(self, events: Path) -> None:
        self._events = events

    @abstractmethod
    def trainer(self) -> int:
        """Return the pid of the process that trains."""

    @abstractmethod
    def go_on(self) -> None:
        """Do what has to be done after a kill."""

    def kill_and_recover(self) -> float:
        """Return the seconds from SIGKILL to the end of the first new step."""
        seen = self._wait_for_a_checkpoint()
        trainer, killed = self.trainer(), time.time()
        os.kill(trainer, signal.SIGKILL)
        self.go_on()
        return self.wait_for_a_step(seen) - killed

    def pause(self, signum: int) -> None:
        """Stop or continue it: the script by hand must have the machine to itself, as the restart has."""
        os.kill(self.trainer(), signum)

    def wait_for_a_step(self, position: int = 0) -> float:
        """Return the time of the first step of the attempt that opens after this position in the file."""
        while True:
            told = self._since(position)
            opened = next((number for number, event in enumerate(told) if event["kind"] == "open"), len(told))
            for event in told[opened:]:
                if event.get("name") == "train/loss":
                    return float(event["ts_ms"]) / 1_000
            time.sleep(0.01)

    def _wait_for_a_checkpoint(self) -> int:
        """Return how many bytes the events had when the next checkpoint was published."""
        before = self._size()
        while not any(event.get("annotation", "").startswith("checkpoint") for event in self._since(before)):
            time.sleep(0.01)
        return self._size()

    def _since(self, position: int) -> list[dict[str, Any]]:
        if not self._events.exists():
            return []
        with self._events.open("rb") as file:
            file.seek(position)
            lines = file.read().split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]

    def _size(self) -> int:
        return self._events.stat().st_size


class ByHand(Run):
    """A run without Prefect: whoever sees it die starts it again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "events.jsonl")
        self._command = [
            sys.executable, "-c", SEXPGPU, "run", str(FILE), "--slug", SLUG, "--steps", str(STEPS),
            "--knob", "checkpoint_every=20", "--location", str(folder / "location"),
            "--metrics", f"jsonl:{self._events}",
        ]  # fmt: skip
        self.process = self._start()

    def trainer(self) -> int:
        return self.process.pid

    def go_on(self) -> None:
        self.process.wait()
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=subprocess.DEVNULL, cwd=ROOT)


class Scheduled(Run):
    """A run that a flow process looks after."""

    def __init__(self, home: Path) -> None:
        from flows.ledger import LedgerFile
        from flows.parameters import TrainParameters
        from flows.scheduling import schedule
        from runtime.checkpoints.location import open_store

        super().__init__(home / "runs" / SLUG / "events.jsonl")
        location = str(home / "location")
        self._ledger = LedgerFile(open_store(location, {}), SLUG)
        knobs = {"checkpoint_every": 20}
        schedule(
            TrainParameters(
                experiment=str(FILE), slug=SLUG, steps=STEPS, knobs=knobs, location=location, device="cpu"
            )
        )

    def trainer(self) -> int:
        ledger = self._ledger.read()
        assert ledger is not None
        trainer = ledger.attempts[-1].trainer
        assert trainer is not None
        return trainer.pid

    def go_on(self) -> None:
        """The flow process does it."""


@contextmanager
def by_hand_run(folder: Path) -> Iterator[ByHand]:
    run = ByHand(folder)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


@contextmanager
def scheduled_run() -> Iterator[Scheduled]:
    """A run on a Prefect server and a worker of its own."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from tests.support.prefect_stack import prefect_stack

    with prefect_stack() as stack, temporary_settings({PREFECT_API_URL: stack.api}):
        stack.deploy()
        stack.start_worker("one")
        yield Scheduled(stack.home)


def compare(run: Run, state: Path, *, rounds: int) -> float:
    """Return the median of what a recovery takes beyond the script by hand, in seconds."""
    extra = []
    run.wait_for_a_step()
    print(f"{'round':>5} {'killed to first step s':>23} {'by hand s':>10} {'extra s':>8}")
    for number in range(rounds):
        ours = run.kill_and_recover()
        run.pause(signal.SIGSTOP)
        bare = start_by_hand(state)
        run.pause(signal.SIGCONT)
        extra.append(ours - bare)
        print(f"{number + 1:>5} {ours:>23.3f} {bare:>10.3f} {extra[-1]:>8.3f}", flush=True)
    return round(statistics.median(extra), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--by-hand", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.by_hand:
        by_hand(given.by_hand)
        return
    with tempfile.TemporaryDirectory() as name:
        state = Path(name, "state.pt")
        start_by_hand(state)  # it leaves the state that the others read
        print("started again by hand")
        with by_hand_run(Path(name)) as run:
            extra_s = compare(run, state, rounds=given.rounds)
        print("under Prefect")
        with scheduled_run() as scheduled:
            extra_prefect_s = compare(scheduled, state, rounds=given.rounds)
    print(json.dumps({"extra_s": extra_s, "extra_prefect_s": extra_prefect_s}))


if __name__ == "__main__":
    main()
