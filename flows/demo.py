"""`make demo`: a run is killed in its middle, comes back by itself, and ends with an unbroken one's bits."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import child
from flows.watch import Watch
from infra.local import stack
from infra.local.directory import DataDirectory, default_data_directory
from infra.local.environment import command_environment
from infra.local.errors import StackError
from runtime.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flows.scheduling import RunView
    from runtime.checkpoints.reader import Checkpoint

__all__ = ["main"]

EXPERIMENT = Path(__file__).parent / "experiments" / "python_lm.py"
# About a minute of training on two cores, with a checkpoint every few seconds.
KNOBS = {
    "steps": "240",
    "width": "128",
    "depth": "4",
    "batch_tokens": "2048",
    "long_window": "128",
    "eval_every": "80",
    "checkpoint_every": "40",
}
STEPS = int(KNOBS["steps"])
# Between two checkpoints, so that steps are lost and made again.
KILL_AFTER_STEP = 100
# Ten times what a quiet machine needs for the longest wait.
PATIENCE_S = 600.0


class DemoError(RunError):
    """The promise was not kept, or not in time. Its text says which."""


@dataclass(slots=True)
class Story:
    """What happened, with the seconds since the run was scheduled."""

    _began: float = field(default_factory=time.monotonic)
    told: list[tuple[str, float, str]] = field(default_factory=list)

    def begin(self) -> None:
        """Count from now."""
        self._began = time.monotonic()

    def tell(self, what: str, detail: str = "") -> None:
        """Print one thing that happened, and keep it for the summary."""
        self.step(None)
        seconds = time.monotonic() - self._began
        self.told.append((what, seconds, detail))
        _print(f"{seconds:7.1f} s  {what}" + (f": {detail}" if detail else ""))

    def step(self, number: int | None) -> None:
        """Show on a terminal which step is being made; unset: show none."""
        if sys.stdout.isatty():
            sys.stdout.write("\r\033[K" + ("" if number is None else f"           step {number} of {STEPS}"))
            sys.stdout.flush()


def main() -> int:
    """Show it. Returns 0 when everything came true, 1 when it did not, else as `slugline up` does."""
    logging.basicConfig(level=logging.WARNING)
    try:
        directory = DataDirectory.at(default_data_directory(os.environ))
        _print(f"Starting the stack in {directory.path}: S3, Prefect, Metrics, a worker and rescue.")
        stack.up(directory, ports=directory.ports(), environ=os.environ, say=_print)
        # Prefect's modules read the environment when they are imported: from here on it is the stack's.
        variables = command_environment(directory, os.environ)
        os.environ.clear()
        os.environ.update(variables)
        return _show(directory)
    except StackError as error:
        _print(f"demo: {error}")
        return error.exit_code
    except RunError as error:
        _print(f"demo: FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        _print("demo: stopped. The stack stays up; `make down` stops it.")
        return 130


def _show(directory: DataDirectory) -> int:
    slug = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    story = Story()
    run = _schedule(slug, story)
    watch = Watch(slug, directory.runs)
    _kill_in_the_middle(watch, story)
    _see_it_come_back(watch, story)
    final = _wait_final(watch, story)
    _print("\nNow the same file once more, with nobody killing it.")
    unbroken = _train_unbroken(slug + "-unbroken", directory, story)
    verdict = _compare(watch.checkpoint(), unbroken.checkpoint(), watch, unbroken)
    page = watch.page()
    _summary(story, f"{slug}: {final.state}", verdict)
    _print(f"Prefect     {run.page}")
    _print(f"Experiment  {page}")
    _print("\nThe stack stays up for you to look at. `make down` stops it; `make demo` does it all again.")
    return 0


def _schedule(slug: str, story: Story) -> RunView:
    from flows.parameters import TrainParameters
    from flows.scheduling import schedule
    from flows.shipment import ship_experiment
    from flows.trees import trees_location

    parameters = TrainParameters(experiment=str(EXPERIMENT), slug=slug, knobs=KNOBS, device="cpu")
    shipment = ship_experiment(parameters, trees_location(os.environ), os.environ)
    story.begin()
    run = schedule(shipment.parameters)
    story.tell("scheduled", f"{slug}, {STEPS} steps of {EXPERIMENT.name}: {run.page}")
    return run


def _kill_in_the_middle(watch: Watch, story: Story) -> None:
    _wait(lambda: watch.step() > 0, "the run trains")
    story.tell("started", "the first step is made")

    def in_the_middle() -> bool:
        story.step(step := watch.step())
        return step >= KILL_AFTER_STEP and watch.newest_checkpoint() > 0

    _wait(in_the_middle, "the middle of the run")
    ledger = watch.ledger()
    entry = ledger.open_entry() if ledger else None
    if entry is None or entry.trainer is None:
        raise DemoError("the run has no trainer to kill: it ended too early")
    os.kill(entry.trainer.pid, signal.SIGKILL)
    story.tell(f"killed at step {watch.step()}", f"SIGKILL to the trainer, process {entry.trainer.pid}")


def _see_it_come_back(watch: Watch, story: Story) -> None:
    def noticed() -> bool:
        ledger = watch.ledger()
        return ledger is not None and ledger.attempts[0].ended_ms is not None

    _wait(noticed, "the kill is noticed")
    story.tell("noticed", "by the run's flow process")

    step = _wait(watch.resumed_from, "the run resumes")
    story.tell(f"resumed from step {step}", "as attempt 2, under the same slug")


def _wait_final(watch: Watch, story: Story) -> RunView:
    from flows.scheduling import find_run

    def ended() -> bool:
        story.step(watch.step())
        return not find_run(watch.slug).live

    _wait(ended, "the run ends", every_s=1.0)
    final = find_run(watch.slug)
    if final.state != "Completed":
        raise DemoError(f"{watch.slug} is {final.state}: {final.message}")
    story.tell("finished", f"step {STEPS} of {STEPS}")
    return final


def _train_unbroken(slug: str, directory: DataDirectory, story: Story) -> Watch:
    """Train the same file in one go: without Prefect, as anybody could."""
    watch = Watch(slug, directory.runs)
    watch.folder.mkdir(parents=True)
    command = [str(Path(sys.executable).with_name("sexpgpu")), "run", str(EXPERIMENT), "--json"]
    command += [f"--slug={slug}", f"--location={watch.location}", "--device=cpu"]
    command += [f"--knob={name}={value}" for name, value in KNOBS.items()]
    command += [f"--metrics=jsonl:{watch.events}", "--metrics=syvain"]
    log = watch.folder / "attempt-0001.log"
    with log.open("wb") as errors, (watch.folder / "attempt-0001.json").open("wb") as summary:
        trainer = subprocess.Popen(_that_ends_with_us(command), stdout=summary, stderr=errors)
    while (code := trainer.poll()) is None:
        story.step(watch.step())
        time.sleep(0.5)
    if code != 0:
        raise DemoError(f"the unbroken run ended with exit code {code}: see {log}")
    story.tell("unbroken run finished", slug)
    return watch


def _that_ends_with_us(command: list[str]) -> list[str]:
    """The command, told to end when this process does: no demo that was stopped leaves a trainer behind."""
    return [sys.executable, child.__file__, "exec", str(os.getpid()), *command]


def _compare(broken: Checkpoint, unbroken: Checkpoint, first: Watch, second: Watch) -> str:
    """Say how much is equal, bit for bit; anything else is a failure."""
    if broken.step != STEPS or unbroken.step != STEPS:
        raise DemoError(f"the last checkpoints are of steps {broken.step} and {unbroken.step}, not {STEPS}")
    if broken.tensors.keys() != unbroken.tensors.keys():
        raise DemoError("the two checkpoints hold different tensors")
    different = [name for name in broken.tensors if not _same(broken.tensors[name], unbroken.tensors[name])]
    if different:
        raise DemoError(
            f"{len(different)} of {len(broken.tensors)} tensors differ: {', '.join(different[:5])}"
        )
    values, expected = first.metrics(), second.metrics()
    if values != expected:
        raise DemoError("the two runs did not measure the same")
    size_mib = sum(tensor.nbytes for tensor in broken.tensors.values()) / 2**20
    return (
        f"{len(broken.tensors)} tensors of weights and optimiser state ({size_mib:.1f} MiB) and "
        f"{len(values)} metric values are equal, bit for bit"
    )


def _same(one: Any, other: Any) -> bool:
    import torch

    # As bytes: a NaN equals itself, and 0.0 is not -0.0.
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    )


def _summary(story: Story, ending: str, verdict: str) -> None:
    _print(f"\n{ending}. What happened, in seconds after it was scheduled:\n")
    width = max(len(what) for what, _, _ in story.told)
    for what, seconds, detail in story.told:
        _print(f"  {what:<{width}}  {seconds:7.1f}  {detail}".rstrip())
    _print(f"\nEqual: {verdict}.\n")


def _wait(condition: Callable[[], Any], what: str, *, every_s: float = 0.2) -> Any:
    """Return what `condition` returns once it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise DemoError(f"waited {PATIENCE_S:.0f} s in vain until {what}")
        time.sleep(every_s)
    return value


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
