"""Who a process is, beyond its number: numbers are reused, hosts restart."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessId", "boot_id", "host_name", "is_alive", "is_running", "this_process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """One process, on one host, since one boot; `start_ticks` is its start in clock ticks after boot."""

    host: str
    boot: str
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the identity of the living process `pid`.

        Raises:
            ProcessLookupError: there is none, or it has ended and nobody has asked for its status.
        """
        ticks = _start_ticks(pid)
        if ticks is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(host=host_name(), boot=boot_id(), pid=pid, start_ticks=ticks)


def this_process() -> ProcessId:
    """Return the identity of the calling process."""
    return ProcessId.of(os.getpid())


def is_alive(process: ProcessId) -> bool | None:
    """Say whether `process` lives; unset: it is another host's, which cannot be seen from here."""
    if process.host != host_name():
        return None
    return process.boot == boot_id() and _start_ticks(process.pid) == process.start_ticks


def is_running(pid: int) -> bool:
    """Say whether any process of this host has the number `pid`."""
    return _start_ticks(pid) is not None


def host_name() -> str:
    """Return the name by which this host is known in ledgers."""
    return socket.gethostname()


def boot_id() -> str:
    """Return what changes whenever this host starts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _start_ticks(pid: int) -> int | None:
    """Return when `pid` started; unset: it is gone, or a zombie that only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses of its own.
    after_name = stat[stat.rindex(")") + 2 :].split()
    return None if after_name[0] in "ZX" else int(after_name[19])
