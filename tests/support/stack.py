"""The real stack on one machine, for tests: started once, on free ports, in a directory of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.local.ports import Ports
from tests.support.ports import claim
from tests.support.shadows import shadows

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Stack", "free_ports", "wait_for"]

BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Stack:
    """A data directory and ports; the verbs run as the real command."""

    path: Path
    ports: Ports

    @classmethod
    def new(cls) -> Stack:
        """A stack that is not up, in a short path (its socket's length is limited)."""
        made = cls(Path(tempfile.mkdtemp(prefix="stack-")), free_ports())
        shadows(made.path / "lib")
        return made

    def slugline(self, *arguments: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
        """Run the command for this stack."""
        return self.run(str(BIN / "slugline"), *arguments, timeout_s=timeout_s)

    def run(self, *command: str, timeout_s: float = 200, **env: str) -> subprocess.CompletedProcess[str]:
        """Run any command with this stack as its default one."""
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s, env=self.environ(**env)
        )

    def environ(self, **more: str) -> dict[str, str]:
        """An environment that knows this stack and nothing of the caller's, and shadows our packages."""
        home = str(self.path)
        path = f"{BIN}:/usr/local/bin:/usr/bin:/bin"
        own = {"PATH": path, "HOME": home, "SLUGLINE_DATA": home, "PYTHONPATH": f"{home}/lib"}
        return {**own, "OMP_NUM_THREADS": "1", **more}

    def up(self) -> subprocess.CompletedProcess[str]:
        """`slugline up` on this stack's ports."""
        ports = self.ports
        options = {"prefect": ports.prefect, "metrics": ports.metrics, "s3": ports.s3}
        return self.slugline("up", *(f"--port-{name}={port}" for name, port in options.items()))

    def status(self) -> dict[str, dict[str, Any]]:
        """`slugline status --json` by service."""
        return {row["name"]: row for row in json.loads(self.slugline("status", "--json").stdout)}

    def processes(self) -> list[int]:
        """Every process that has this stack's marker: read here, not by the code under test."""
        marker = f"SLUGLINE_STACK={self.path}".encode()
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and marker in _environ(entry).split(b"\0")
        ]

    def remove(self) -> None:
        """Stop it and remove everything."""
        self.slugline("down")
        shutil.rmtree(self.path)


def free_ports() -> Ports:
    """Ports that nobody listens on, those of the object store's inside included."""
    # The object store's farthest is 10,008 beyond its first, and below those that the kernel chooses from.
    for start in range(12_000 + os.getpid() % 4_000, 21_000, 16):
        ports = Ports(prefect=start + 10, metrics=start + 11, s3=start)
        if claim([port.number for port in ports.needed()]):
            return ports
    raise AssertionError("no free ports")


def wait_for(condition: Callable[[], Any], *, timeout_s: float, what: str | Callable[[], str]) -> Any:
    """Return what `condition` returns once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"{told}: not within {timeout_s} s")
        time.sleep(0.2)
    return value


def _environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
