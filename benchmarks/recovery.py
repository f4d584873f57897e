"""How long a killed run takes to its first new step, beyond what any process needs to start and to load.

A run is killed with SIGKILL and started again at once; against it, a script by hand that starts Python and
torch, makes the same model, reads the same state with `torch.load` and takes one step. In turns, the median.
The last line is JSON: `extra_s`.

    python benchmarks/recovery.py [--rounds 7]
"""

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
from pathlib import Path
from typing import Any

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


class Run:
    """One slug that is killed and started again; what happened when is read from its events."""

    def __init__(self, folder: Path) -> None:
        self._events = folder / "events.jsonl"
        self._command = [
            sys.executable, "-c", SEXPGPU, "run", str(FILE), "--slug", SLUG, "--steps", str(STEPS),
            "--knob", "checkpoint_every=20", "--location", str(folder / "location"),
            "--metrics", f"jsonl:{self._events}",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._start()
        self._first_step_after(0)

    def kill_and_restart(self) -> float:
        """Seconds from SIGKILL to the end of the first new step."""
        seen = self._wait_for_a_checkpoint()
        assert self._process is not None
        killed = time.time()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._start()
        return self._first_step_after(seen) - killed

    def pause(self, signum: int) -> None:
        """Stop or continue it: the script by hand must have the machine to itself, as the restart has."""
        assert self._process is not None
        self._process.send_signal(signum)

    def close(self) -> None:
        """End it for good."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, cwd=ROOT)

    def _wait_for_a_checkpoint(self) -> int:
        """Return how many bytes the events had when the next checkpoint was published."""
        before = self._size()
        while not any(event.get("annotation", "").startswith("checkpoint") for event in self._since(before)):
            time.sleep(0.01)
        return self._size()

    def _first_step_after(self, position: int) -> float:
        while True:
            told = self._since(position)
            opened = next((number for number, event in enumerate(told) if event["kind"] == "open"), len(told))
            for event in told[opened:]:
                if event.get("name") == "train/loss":
                    return float(event["ts_ms"]) / 1_000
            time.sleep(0.01)

    def _since(self, position: int) -> list[dict[str, Any]]:
        if not self._events.exists():
            return []
        with self._events.open("rb") as file:
            file.seek(position)
            lines = file.read().split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]

    def _size(self) -> int:
        return self._events.stat().st_size


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
        state, run = Path(name, "state.pt"), Run(Path(name))
        run.pause(signal.SIGSTOP)
        start_by_hand(state)
        run.pause(signal.SIGCONT)
        extra = []
        print(f"{'round':>5} {'killed to first step s':>23} {'by hand s':>10} {'extra s':>8}")
        for number in range(given.rounds):
            ours = run.kill_and_restart()
            run.pause(signal.SIGSTOP)
            bare = start_by_hand(state)
            run.pause(signal.SIGCONT)
            extra.append(ours - bare)
            print(f"{number + 1:>5} {ours:>23.3f} {bare:>10.3f} {extra[-1]:>8.3f}", flush=True)
        run.close()
    print(json.dumps({"extra_s": round(statistics.median(extra), 3)}))


if __name__ == "__main__":
    main()
