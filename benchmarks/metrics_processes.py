"""How `metrics_server.py` treats processes: each server has one core to itself, clients share the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "Client",
    "Sent",
    "cpu_s",
    "on_the_servers_core",
    "pin_client",
    "resident_mib",
    "size_of",
    "together",
]

SERVER_CORE, CLIENT_CORE = 0, 1


@dataclass(frozen=True, slots=True)
class Sent:
    """What it took to bring points to a server. `size_bytes`: what they take on disk once it is stopped."""

    points: int
    seconds: float
    cpu_s: float
    latencies_ms: list[float]
    size_bytes: int
    rss_mib: float

    @property
    def per_s(self) -> float:
        """Return points per second."""
        return self.points / self.seconds

    def latency_ms(self, part: float) -> float:
        """Return the time within which that part of the batches was acknowledged."""
        times = sorted(self.latencies_ms)
        return times[min(int(part * len(times)), len(times) - 1)] if times else float("nan")


def pin_client() -> None:
    """This process, and all that it starts, to the core of the clients."""
    os.sched_setaffinity(0, {CLIENT_CORE})


@contextmanager
def on_the_servers_core() -> Iterator[None]:
    """Whatever is started in here runs on the other core."""
    os.sched_setaffinity(0, {SERVER_CORE})
    try:
        yield
    finally:
        pin_client()


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    pids = [pid]
    for parent in pids:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            pids.extend(map(int, children.read_text().split()))
    return pids


def cpu_s(*pids: int) -> float:
    """Return the CPU seconds of processes and their children so far."""
    ticks = 0
    for one in [one for pid in pids for one in tree(pid)]:
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int, field: str = "VmHWM") -> float:
    """Return the most memory that a process and its children had resident; `VmRSS`: have now."""
    kib = 0
    for one in tree(pid):
        for line in Path(f"/proc/{one}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                kib += int(line.split()[1])
    return kib / 1024


def size_of(folder: Path, pattern: str) -> int:
    """Return the bytes of the files that match."""
    return sum(file.stat().st_size for file in folder.glob(pattern))


class Client:
    """A process that says when it is ready, begins when told to, and tells as JSON what it saw."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | dict(env or {})
        )

    def ready(self) -> None:
        """Wait until it has prepared all that is not measured."""
        line = self._line()
        assert line == b"ready\n", line

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def told(self) -> dict[str, Any]:
        """Wait until it is done and return what it saw. Its process may not have ended yet."""
        return dict(json.loads(self._line()))

    def ended(self) -> None:
        """Wait until its process has ended."""
        assert self._process.wait() == 0

    def kill(self) -> None:
        """End it, if it is not done."""
        self._process.kill()
        self._process.wait()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"a client ended with {self._process.wait()}"
        return line


def together(clients: Sequence[Client], *servers: int) -> tuple[float, float, list[float]]:
    """Let clients begin at once and wait for them all.

    Returns the seconds until the last had every answer, the servers' CPU seconds until then, and all times
    that they took.
    """
    for pid in servers:
        assert os.sched_getaffinity(pid) == {SERVER_CORE}, "the server shares its core with its clients"
    try:
        for client in clients:
            client.ready()
        cpu, began = cpu_s(*servers), time.perf_counter()
        for client in clients:
            client.go()
        told = [client.told() for client in clients]
        seconds, used = time.perf_counter() - began, cpu_s(*servers) - cpu
        for client in clients:
            client.ended()
        return seconds, used, [each for one in told for each in one["latencies_ms"]]
    finally:
        for client in clients:
            client.kill()


def wait_to_go() -> None:
    """In a client: say that all is prepared and wait to be let through."""
    print("ready", flush=True)
    sys.stdin.readline()
