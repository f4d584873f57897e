"""One attempt of an experiment file on this host: its command line, and what its exit code means."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flows.attempts import Plan
from flows.endings import Ended, Ending, classify
from flows.parameters import TrainParameters, experiment_path
from flows.trainer import HostTrainer, killed_for
from flows.unpacking import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flows.gpus import Host, Lease
    from runtime.checkpoints.store import Store

__all__ = ["CommandOf", "SexpgpuTrainer", "experiment_flags", "sexpgpu_command"]


class CommandOf(Protocol):
    """Makes an attempt's command line: `sexpgpu_command`, or a test's."""

    def __call__(
        self,
        parameters: TrainParameters,
        *,
        experiment: Path,
        events: Path,
        targets: Sequence[str],
        num_gpus: int,
    ) -> list[str]:
        """Return the program and its arguments."""
        ...


@dataclass(slots=True, kw_only=True)
class SexpgpuTrainer(HostTrainer):
    """Runs attempts of an experiment file, as its parameters say. `trees` holds what was shipped."""

    parameters: TrainParameters
    command: CommandOf
    trees: Store | None = None

    @contextlib.contextmanager
    def made_ready(self, number: int) -> Iterator[Path]:
        """See `HostTrainer.made_ready`: the experiment file, in what was shipped or on this host."""
        del number
        parameters = self.parameters
        if parameters.tree is None:
            yield experiment_path(parameters.experiment)
            return
        assert self.trees is not None
        yield unpacked(self.trees, parameters.tree, self.folder) / parameters.experiment

    def num_gpus(self, host: Host) -> int:
        """See `HostTrainer.num_gpus`."""
        if self.parameters.device == "cpu":
            return 0
        return min(1, len(host.gpus)) if self.parameters.gpus is None else self.parameters.gpus

    @contextlib.contextmanager
    def plan(self, number: int, output: Path, ready: Path, leased: Lease) -> Iterator[Plan]:
        """See `HostTrainer.plan`."""
        command = self.command(
            self.parameters,
            experiment=ready,
            events=self.folder / "events.jsonl",
            targets=self._targets(),
            num_gpus=len(leased.gpus),
        )
        yield Plan(
            command=command,
            folder=self.folder,
            log=output,
            summary=self._summary(number),
            environment=self.basic_environment(leased),
            notice_s=self.parameters.notice_s,
            inherited=leased.descriptors,
        )

    def ended(self, number: int, code: int, *, out_of_memory: bool) -> Ended:
        """See `HostTrainer.ended`."""
        ending = classify(code)
        last_line = self.report.last_line()
        if ending is Ending.DONE:
            return Ended(ending=ending, code=code, unsent=_unsent(self._summary(number)))
        if ending is Ending.FAILED:
            step, error = self.report.progress.failed or (None, last_line)
            # An event is as the trainer wrote it: nothing is masked there.
            error = self.hidden.masker().mask(error.encode(errors="replace")).decode()
            return Ended(ending=ending, code=code, step=step, error=error)
        if ending in (Ending.REJECTED, Ending.UNAVAILABLE):
            return Ended(ending=ending, code=code, error=last_line)
        return Ended(ending=ending, code=code, error=killed_for(code, out_of_memory=out_of_memory))

    def _summary(self, number: int) -> Path:
        return self.folder / f"attempt-{number:04d}.json"

    def _targets(self) -> tuple[str, ...]:
        """Return the worker's and the run's own; one that both name is meant once."""
        of_worker = self.environment.get("SLUGLINE_TARGETS", "").split()
        return tuple(dict.fromkeys([*of_worker, *self.parameters.targets]))


def sexpgpu_command(
    parameters: TrainParameters, *, experiment: Path, events: Path, targets: Sequence[str], num_gpus: int
) -> list[str]:
    """Return the command line of `sexpgpu run` for these parameters."""
    flags = {
        "--slug": parameters.slug,
        "--location": parameters.location,
        "--folder": parameters.folder,
        "--devices": ",".join(map(str, range(num_gpus))) if num_gpus > 1 else None,
        "--notice": f"{parameters.notice_s:g}",
    }
    return [
        # The script beside our interpreter: the working folder is no place to import from.
        str(Path(sys.executable).with_name("sexpgpu")),
        "run",
        str(experiment),
        "--json",
        *_given(flags),
        *experiment_flags(parameters),
        *(f"--metrics={target}" for target in (f"jsonl:{events}", *targets)),
    ]


def experiment_flags(parameters: TrainParameters) -> list[str]:
    """Return the flags that say what of the file is trained, which `sexpgpu run` and `check` both take."""
    flags = {
        "--variant": parameters.variant,
        "--steps": parameters.steps,
        "--eval-every": parameters.eval_every,
        "--device": parameters.device,
    }
    knobs = dict(parameters.knobs)
    if parameters.precision is not None:
        knobs["precision"] = parameters.precision
    return [*_given(flags), *(f"--knob={name}={_knob_text(value)}" for name, value in knobs.items())]


def _given(flags: Mapping[str, object]) -> list[str]:
    return [f"{flag}={value}" for flag, value in flags.items() if value is not None]


def _unsent(summary: Path) -> int:
    """Return how many events Metrics had not taken, as the trainer's summary says; 0 without one."""
    try:
        return int(json.loads(summary.read_bytes().splitlines()[-1])["unsent"])
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return 0


def _knob_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
