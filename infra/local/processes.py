"""The processes of a stack, found by the marker in their environment: nothing that it started is missed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.local.environment import MARKER

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection

    from infra.local.directory import DataDirectory

__all__ = ["Process", "processes", "send", "wait_until"]


@dataclass(frozen=True, slots=True)
class Process:
    """One living process of the stack."""

    pid: int
    command: tuple[str, ...]

    @property
    def is_flow(self) -> bool:
        """Whether it executes a Prefect flow run; the trainer is its child."""
        line = " ".join(self.command)
        return "prefect.engine" in line or "flow-run execute" in line

    @property
    def is_runner(self) -> bool:
        """Whether it is what starts runs: the worker, or rescue."""
        line = " ".join(self.command)
        return "prefect worker" in line or "flows.rescue" in line

    @property
    def is_server(self) -> bool:
        """Whether it is what runs need to save, or the supervisor: those go last."""
        line = " ".join(self.command)
        servers = ("weed mini", "prefect server", "infra.metrics.main server", "supervisor.supervisord")
        return any(part in line for part in servers)


def processes(directory: DataDirectory) -> list[Process]:
    """Every process that runs for this data directory, this one and its ancestors left out."""
    marker = os.fsencode(f"{MARKER}={directory.path}")
    ours = _ancestors(os.getpid())
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        # Another user's, or gone meanwhile.
        with suppress(OSError):
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                found.append(Process(int(entry.name), tuple(os.fsdecode(word) for word in command)))
    return found


def send(which: Collection[Process], number: signal.Signals) -> None:
    """Signal each; one that is gone already is well."""
    for process in which:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def wait_until(condition: Callable[[], bool], *, timeout_s: float, every_s: float = 0.1) -> bool:
    """Wait for a condition; false when it did not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True


def _ancestors(pid: int) -> set[int]:
    """This process and those above it: a command may itself run inside the stack."""
    found = set()
    while pid > 1:
        found.add(pid)
        try:
            # pid (comm) state ppid ...; comm may hold spaces and brackets.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found
