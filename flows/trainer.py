"""One attempt of a run on this host: the command line, the GPUs, the files, and how it ended."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flows.attempts import Attempt, Plan
from flows.endings import Ended, Ending, classify
from flows.gpus import Host, Lease, lease
from flows.parameters import TrainParameters, experiment_path, file_name
from flows.unpacking import unpacked
from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from flows.assignment import RunParameters
    from flows.processes import ProcessId
    from flows.pulse import Upkeep
    from flows.report import Report
    from flows.run_page import RunPage
    from runtime.checkpoints.store import Store

__all__ = [
    "TELEMETRY",
    "CommandOf",
    "HostTrainer",
    "SexpgpuTrainer",
    "experiment_flags",
    "killed_for",
    "oom_kills",
    "sexpgpu_command",
    "work_folder",
]

DEFAULT_WORK_DIR = "~/.local/state/slugline"

TELEMETRY = "telemetry.jsonl"


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
class HostTrainer(ABC):
    """Runs attempts on this host, on leased GPUs. `folder` keeps the run's files and logs here.

    What is run, and what its exit code means, is a subclass's. `page` unset: the run has none.
    """

    folder: Path
    environment: Mapping[str, str]
    report: Report
    upkeep: Upkeep
    page: RunPage | None = None
    _is_first: bool = True

    def __call__(self, number: int, started: Callable[[ProcessId | None], None]) -> Ended:
        """Run attempt `number` to its end."""
        log = self._log(number)
        self.report.begin(log)
        oom_before = oom_kills()
        try:
            with self.made_ready(number) as ready:
                host = Host.from_environment(self.environment)
                with lease(self.num_gpus(host), host, on_wait=self.report.say) as leased:
                    self.report.note(f"attempt {number} is running")
                    code = self._run(number, log, ready, leased, started)
        except (Rejected, Unavailable) as error:
            return Ended(ending=classify(error.exit_code), code=error.exit_code, error=str(error))
        except OSError as error:
            # A full disk, a folder that is gone: this host's trouble, not the run's.
            return Ended(ending=Ending.UNAVAILABLE, code=75, error=f"not started on this host: {error}")
        return self.ended(number, code, out_of_memory=oom_kills() > oom_before)

    @abstractmethod
    def made_ready(self, number: int) -> AbstractContextManager[Path]:
        """Make ready what the attempt runs, and tidy up after it.

        Raises:
            Rejected: it can never be run.
            Unavailable: it is not there now.
        """

    @abstractmethod
    def num_gpus(self, host: Host) -> int:
        """Return how many GPUs of `host` the attempt needs."""

    @abstractmethod
    def plan(self, number: int, log: Path, ready: Path, leased: Lease) -> AbstractContextManager[Plan]:
        """Say what is started, and look after what it prints while it runs."""

    @abstractmethod
    def ended(self, number: int, code: int, *, out_of_memory: bool) -> Ended:
        """Say how the attempt ended whose wait status is `code`."""

    def masked(self) -> Mapping[str, str]:
        """Return what must not be read in the run's telemetry, each value by a name for it."""
        return {}

    def say(self, text: str) -> None:
        """Put a line into the run's log."""
        self.report.remark(text)

    @property
    def telemetry(self) -> Path:
        """The file to which every attempt appends its points."""
        return self.folder / TELEMETRY

    def basic_environment(self, leased: Lease) -> dict[str, str]:
        """Return what every attempt's environment holds."""
        # What Prefect tells a flow process about itself is no business of its trainer.
        kept = {name: value for name, value in self.environment.items() if not name.startswith("PREFECT__")}
        return {**kept, **leased.environment(), "DIVERGENT_TELEMETRY_PATH": str(self.telemetry)}

    def _run(
        self,
        number: int,
        log: Path,
        ready: Path,
        leased: Lease,
        started: Callable[[ProcessId | None], None],
    ) -> int:
        # Leaving the block by whatever way stops the trainer, and leaves no process behind.
        with self.plan(number, log, ready, leased) as plan, self._followed(number, log), Attempt(plan) as run:
            if (left := self._left(number)) is not None:
                self.upkeep.follow(left, number - 1)
            self.upkeep.follow(log, number)
            self._is_first = False
            started(run.process())
            return run.wait()

    @contextlib.contextmanager
    def _followed(self, number: int, log: Path) -> Iterator[None]:
        if self.page is None:
            yield
            return
        with self.page.follow(
            number,
            log=log,
            telemetry=self.telemetry,
            secrets=self.masked(),
            say=self.say,
            left=self._left(number),
        ):
            yield

    def _log(self, number: int) -> Path:
        return self.folder / f"attempt-{number:04d}.log"

    def _left(self, number: int) -> Path | None:
        """Return the log that a flow process which died may not have told whole; unset: there is none."""
        before = self._log(number - 1)
        return before if self._is_first and before.exists() else None


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
    def plan(self, number: int, log: Path, ready: Path, leased: Lease) -> Iterator[Plan]:
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
            log=log,
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
            return Ended(ending=ending, code=code, step=step, error=error)
        if ending in (Ending.REJECTED, Ending.UNAVAILABLE):
            return Ended(ending=ending, code=code, error=last_line)
        return Ended(ending=ending, code=code, error=killed_for(code, out_of_memory=out_of_memory))

    def _summary(self, number: int) -> Path:
        return self.folder / f"attempt-{number:04d}.json"

    def _targets(self) -> tuple[str, ...]:
        of_worker = self.environment.get("SLUGLINE_TARGETS", "").split()
        return tuple(
            dict.fromkeys([*of_worker, *self.parameters.targets])
        )  # one that both name is meant once


def killed_for(code: int, *, out_of_memory: bool) -> str | None:
    """Say why an attempt was killed, where that is known."""
    return "out of memory" if code == -signal.SIGKILL and out_of_memory else None


def work_folder(parameters: RunParameters, environment: Mapping[str, str]) -> Path:
    """Return the run's folder on this host, made if need be.

    Raises:
        Unavailable: it cannot be made.
    """
    assert parameters.slug is not None
    base = parameters.work_dir or environment.get("SLUGLINE_WORK_DIR") or DEFAULT_WORK_DIR
    # Whole: the trainer works in this folder, and is told of files in it.
    folder = Path(base).expanduser().absolute() / file_name(parameters.slug)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"the folder {folder} cannot be made on this host ({error.strerror}): set SLUGLINE_WORK_DIR."
        ) from error
    return folder


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


def oom_kills() -> int:
    """Return how often the kernel has killed for memory in our control group; 0 where it does not say."""
    try:
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()[0].rpartition(":")[2]
        events = Path(f"/sys/fs/cgroup{group}/memory.events").read_text(encoding="utf-8")
    except (OSError, IndexError):
        return 0
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", 0))
