"""One attempt of a run on this host: the GPUs, the files, what it prints, and what follows it."""

from __future__ import annotations

import contextlib
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.attempts import Attempt, Plan
from flows.background import Every
from flows.endings import Ended, Ending, classify
from flows.gpus import Host, Lease, lease
from flows.output import Output
from flows.parameters import file_name
from flows.processes import host_name
from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from flows.assignment import RunParameters
    from flows.hidden import Hidden
    from flows.processes import ProcessId
    from flows.pulse import Upkeep
    from flows.report import Report
    from flows.run_page import RunPage

__all__ = ["TELEMETRY", "HostTrainer", "killed_for", "oom_kills", "work_folder"]

DEFAULT_WORK_DIR = "~/.local/state/slugline"

TELEMETRY = "telemetry.jsonl"
PUMP_S = 0.25


@dataclass(slots=True, kw_only=True)
class HostTrainer(ABC):
    """Runs attempts on this host, on leased GPUs. `folder` keeps the run's files and logs here.

    What is run, and what its exit code means, is a subclass's. What it prints goes into the log masked: none
    of the `hidden` values may be read there. `page` unset: the run has none.
    """

    folder: Path
    environment: Mapping[str, str]
    hidden: Hidden
    report: Report
    upkeep: Upkeep
    page: RunPage | None = None
    _is_first: bool = True
    _output: Output | None = None

    def __call__(self, number: int, started: Callable[[ProcessId | None], None]) -> Ended:
        """Run attempt `number` to its end."""
        log = self._log(number)
        self.report.begin(log)
        oom_before = oom_kills()
        try:
            self.hidden.renew()
            Output.finish_left(self.folder, self.hidden.masker)
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
    def plan(self, number: int, output: Path, ready: Path, leased: Lease) -> AbstractContextManager[Plan]:
        """Say what is started, which writes what the log is made of to `output`, and tidy up after it."""

    @abstractmethod
    def ended(self, number: int, code: int, *, out_of_memory: bool) -> Ended:
        """Say how the attempt ended whose wait status is `code`."""

    def say(self, text: str) -> None:
        """Put a line into the run's log."""
        assert self._output is not None
        self._output.say(text)

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
        with (
            self._copied(log) as output,
            self.plan(number, output, ready, leased) as plan,
            self._followed(number, log),
            Attempt(plan) as run,
        ):
            self.upkeep.catch_up(self._left(number))
            self.upkeep.follow(log, number)
            self._is_first = False
            started(run.process())
            return run.wait()

    @contextlib.contextmanager
    def _copied(self, log: Path) -> Iterator[Path]:
        """Copy what the attempt prints, masked, into its log; give the file that it prints to."""
        output = self._output = Output(self.folder, log, masker=self.hidden.masker())
        pump = Every(PUMP_S, output.pump, name="output")
        pump.start()
        try:
            yield output.path
        finally:
            pump.stop(timeout_s=5.0)
            try:
                output.finish()
            except OSError as error:
                # Where there is no room for the last words, how the attempt ended counts all the same.
                self.report.remark(f"the end of the log is not kept: {error}")

    @contextlib.contextmanager
    def _followed(self, number: int, log: Path) -> Iterator[None]:
        if self.page is None:
            yield
            return
        with self.page.follow(
            number,
            log=log,
            telemetry=self.telemetry,
            secrets=self.hidden.values(),
            say=self.say,
            left=self._left(number),
        ):
            yield

    def _log(self, number: int) -> Path:
        return self.folder / f"attempt-{number:04d}.log"

    def _left(self, number: int) -> dict[int, Path]:
        """Return the logs here that flow processes which died may not have told whole, by attempt."""
        if not self._is_first:
            return {}
        # A number that was begun again on another host is that one's, and so is what its log says.
        hosts = {entry.number: entry.host for entry in self.report.ledger.attempts}
        here = (before for before in range(1, number) if hosts.get(before, host_name()) == host_name())
        # By name, not by a pattern: an experiment's own files lie here too.
        return {before: log for before in here if (log := self._log(before)).exists()}


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


def oom_kills() -> int:
    """Return how often the kernel has killed for memory in our control group; 0 where it does not say."""
    try:
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()[0].rpartition(":")[2]
        events = Path(f"/sys/fs/cgroup{group}/memory.events").read_text(encoding="utf-8")
    except (OSError, IndexError):
        return 0
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", 0))
