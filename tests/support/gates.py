"""The small run with gates: a test can hold it in the middle of an update, and let it go or fail there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.checkpoints.location import open_location
from tests.support.runs import EXPERIMENT, SmallRun
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from runtime.checkpoints.record import RunRecord

__all__ = ["GATED", "await_checkpoint", "await_held", "fail_at", "hold", "let_go", "record"]

_GATE = """
    def rate(step):
        "The learning rate of an update, which waits for whoever has closed its gate."
        import time
        from pathlib import Path

        gate = Path(f"hold-{step}")
        if gate.exists():
            Path(f"held-{step}").touch()
        while gate.exists():
            time.sleep(0.002)
        if Path(f"fail-{step}").exists():
            raise RuntimeError("asked for")
        return 0.05 / (1 + step)


    class Best:"""

GATED = EXPERIMENT.replace("\n    class Best:", _GATE).replace("lambda step: 0.05 / (1 + step)", "rate")
"""The small experiment, with the same bits."""
assert "learning_rate=rate," in GATED

_WITHIN_S = 90.0


def hold(run: SmallRun, step: int) -> None:
    """Close the gate in update `step`, for all attempts in this folder, until `let_go`."""
    assert 0 < step < 11, "the first and the last rate are also asked for when the file is checked"
    (run.folder / f"hold-{step}").touch()


def await_held(run: SmallRun, step: int) -> None:
    """Wait until an attempt stands in update `step`: all before it was said, the update itself was not."""
    held = run.folder / f"held-{step}"
    wait_until(held.exists, within_s=_WITHIN_S, poll_s=0.01, what=f"no attempt came to update {step}")


def let_go(run: SmallRun, step: int) -> None:
    """Open the gate."""
    (run.folder / f"hold-{step}").unlink()


def fail_at(run: SmallRun, step: int) -> None:
    """Make update `step` raise, once the gate is open."""
    (run.folder / f"fail-{step}").touch()


def record(run: SmallRun) -> RunRecord | None:
    """The run record; None before the first claim."""
    return open_location(run.location, run.env).record()


def await_checkpoint(run: SmallRun, step: int, *, within_s: float = _WITHIN_S) -> None:
    """Wait until the record names a checkpoint of `step`."""
    location = open_location(run.location, run.env)

    def stands() -> bool:
        found = location.record()
        return found is not None and any(entry.step == step for entry in found.checkpoints)

    wait_until(stands, within_s=within_s, poll_s=0.02, what=f"no checkpoint of step {step}")
