"""One attempt of a shipped command on this host: its directory, its environment, its result."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.attempts import Plan
from flows.endings import Ended, Ending, classify
from flows.run_page import RESULT
from flows.run_writer import MAX_RESULT_BYTES
from flows.trainer import HostTrainer, killed_for
from flows.unpacking import unpacked
from runtime.errors import Rejected, RunError
from runtime.events.syvain.settings import metrics_settings
from runtime.telemetry.followed import open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flows.gpus import Host, Lease
    from flows.ship_parameters import ShipParameters
    from runtime.checkpoints.store import Store

__all__ = ["CHECKPOINTS", "CommandTrainer", "checkpoints_of", "is_sexpgpu_run"]

CHECKPOINTS = "checkpoints"
"""Where below its location a command keeps what it resumes from."""


def is_sexpgpu_run(command: Sequence[str]) -> bool:
    """Say whether a command is `sexpgpu run`, whose exit codes mean what ours do."""
    words = list(command)
    if len(words) > 2 and Path(words[0]).name.startswith("python") and words[1] == "-m":
        words = words[2:]
    return len(words) > 1 and Path(words[0]).name == "sexpgpu" and words[1] == "run"


def checkpoints_of(location: str) -> str:
    """Return the location at which a command of the run at `location` keeps its checkpoints."""
    return f"{location.rstrip('/')}/{CHECKPOINTS}"


@dataclass(slots=True, kw_only=True)
class CommandTrainer(HostTrainer):
    """Runs attempts of a command. `trees` holds what was shipped, `store` is the run's own location.

    `is_replaced` says whether another flow process has taken the run from this one; unset: none has.
    """

    parameters: ShipParameters
    store: Store
    trees: Store
    is_replaced: Callable[[], bool] = lambda: False

    @contextlib.contextmanager
    def made_ready(self, number: int) -> Iterator[Path]:
        """See `HostTrainer.made_ready`: the directory, in which earlier attempts' files are still there."""
        del number
        if missing := [name for name in self.parameters.secrets if name not in self.hidden.secrets]:
            raise Rejected(f"there is no secret {missing[0]}: set it with `div secret set {missing[0]}`.")
        self._result.unlink(missing_ok=True)
        self.store.delete([RESULT])
        yield unpacked(self.trees, self.parameters.tree, self.folder)

    def num_gpus(self, host: Host) -> int:
        """See `HostTrainer.num_gpus`."""
        return min(1, len(host.gpus)) if self.parameters.gpus is None else self.parameters.gpus

    @contextlib.contextmanager
    def plan(self, number: int, output: Path, ready: Path, leased: Lease) -> Iterator[Plan]:
        """See `HostTrainer.plan`: the run's result is kept when the command has ended."""
        try:
            yield Plan(
                command=self.parameters.command,
                folder=ready,
                log=output,
                summary=None,
                environment=self._environment(number, leased),
                notice_s=self.parameters.notice_s,
                inherited=leased.descriptors,
            )
        finally:
            self._keep_result()

    def ended(self, number: int, code: int, *, out_of_memory: bool) -> Ended:
        """See `HostTrainer.ended`: what a stranger's exit code says is only that it failed."""
        del number
        ending = classify(code)
        if ending is not Ending.DONE and ending is not Ending.INTERRUPTED:
            if not is_sexpgpu_run(self.parameters.command):
                ending = Ending.FAILED
            return Ended(ending=ending, code=code, error=self.report.last_line() or None)
        return Ended(ending=ending, code=code, error=killed_for(code, out_of_memory=out_of_memory))

    @property
    def _result(self) -> Path:
        return self.folder / RESULT

    def _environment(self, number: int, leased: Lease) -> dict[str, str]:
        parameters = self.parameters
        assert parameters.slug is not None
        assert parameters.location is not None
        checkpoints = checkpoints_of(parameters.location)
        if not checkpoints.startswith("s3://"):
            Path(checkpoints).mkdir(parents=True, exist_ok=True)
        basic = self.basic_environment(leased)
        # The `python` of a command is the one that has Slugline, and with it `runtime.telemetry`.
        path = os.pathsep.join([str(Path(sys.executable).parent), basic.get("PATH", os.defpath)])
        return {
            "PYTHONUNBUFFERED": "1",
            **basic,
            "PATH": path,
            **self._metrics(),
            **parameters.env,
            **{name: self.hidden.secrets[name] for name in parameters.secrets},
            "DIVERGENT_RESULT_PATH": str(self._result),
            "DIVERGENT_RUN": parameters.slug,
            "DIVERGENT_ATTEMPT": str(number),
            "SLUGLINE_SLUG": parameters.slug,
            "SLUGLINE_CHECKPOINTS": checkpoints,
        }

    def _metrics(self) -> dict[str, str]:
        try:
            settings = metrics_settings(self.environment)
        except Rejected:
            return {}
        return {"O41_METRICS_HOST": settings.host, "O41_METRICS_API_KEY": settings.api_key}

    def _keep_result(self) -> None:
        """Store the run's result where it outlives this host."""
        try:
            data = _first_bytes(self._result, MAX_RESULT_BYTES + 1)
        except OSError as error:
            self.report.remark(f"the run's result is not kept: {error}")
            return
        if data is None:
            return
        if len(data) > MAX_RESULT_BYTES:
            self.report.remark(f"{RESULT} is not kept: write at most {MAX_RESULT_BYTES:,} bytes")
            return
        try:
            if self.is_replaced():
                return  # what lies there is the newer attempt's
            self.store.put(RESULT, self.hidden.masker().mask(data))
        except RunError as error:
            self.report.remark(f"the run's result is not at its location yet: {error}")


def _first_bytes(path: Path, size: int) -> bytes | None:
    """Return the beginning of a file; None where there is none, or a pipe, which would be waited for."""
    descriptor = open_file(path)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(size)
