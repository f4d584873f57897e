"""A real Prefect server, workers and rescue, each a process of its own, and nothing of the user's Prefect."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import child
from flows.deploy import deploy
from tests.support.ports import free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PrefectStack", "prefect_stack"]

POOL = "gpu"
START_S = 180


@dataclass
class PrefectStack:
    """What is running, by pid. `home` holds Prefect's database, the logs and the runs."""

    home: Path
    port: int
    extra_env: dict[str, str] = field(default_factory=dict)
    server: subprocess.Popen[bytes] | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def env(self) -> dict[str, str]:
        """The environment of every process of the stack, and of a test that talks to it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
        return {
            **kept,
            "DO_NOT_TRACK": "1",
            "PREFECT_HOME": str(self.home / "prefect"),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            "PREFECT_CLIENT_MAX_RETRIES": "30",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "SLUGLINE_WORK_DIR": str(self.home / "runs"),
            "SLUGLINE_GPU_LOCKS": str(self.home / "gpu-locks"),
            "SLUGLINE_LOCATION": str(self.home / "locations"),
            "OMP_NUM_THREADS": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            **self.extra_env,
        }

    def start_server(self) -> None:
        """Start the server, or start it again on the same database, and wait until it answers."""
        command = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        self.server = self.spawn(command, "server")
        wait_until(self._healthy, within_s=START_S, what=lambda: self.log("server"))

    def kill_server(self) -> None:
        """Kill it as a power failure would."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def deploy(self, *, pool: str = POOL, name: str | None = None) -> None:
        """Make a pool and the deployments in it, as the command does, whose start takes three seconds."""
        with temporary_settings({PREFECT_API_URL: self.api}):
            deploy(pool=pool, name=name)

    def start_worker(self, name: str, *, pool: str = POOL) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        return self.spawn(
            ["-m", "prefect", "worker", "start", "--pool", pool, "--name", name], f"worker-{name}"
        )

    def stop_workers(self, *, pool: str) -> None:
        """Kill the workers of a pool: an idle one asks the server all the time."""
        for process in self.started:
            if pool in process.args and process.poll() is None:  # type: ignore[operator] # a list of ours
                process.kill()
                process.wait()

    def start_rescue(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start the rescue of this host."""
        return self.spawn(["-m", "sexpgpu", "flows.rescue", *flags], "rescue")

    def spawn(self, arguments: list[str], name: str) -> subprocess.Popen[bytes]:
        """Start a Python process of the stack in a group of its own; its output goes to `<name>.log`."""
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                # It ends with the test process, should that be killed before it can close the stack.
                [
                    sys.executable,
                    "-I",
                    "-S",
                    child.__file__,
                    "exec",
                    str(os.getpid()),
                    sys.executable,
                    "-P",
                    *arguments,
                ],
                env=self.env(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def log(self, name: str) -> str:
        """What a process has printed."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def pids(self, *arguments: str) -> list[int]:
        """The processes of this stack that have all of `arguments`, each as a whole, among their own."""
        marker = f"PREFECT_HOME={self.home / 'prefect'}".encode()
        return [pid for pid, given, env in _processes() if marker in env and given.issuperset(arguments)]

    def close(self) -> None:
        """End everything, by pid: what was started here and what that has started."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        deadline = time.monotonic() + 30
        while (left := self.pids()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def _healthy(self) -> bool:
        assert self.server is not None
        assert self.server.poll() is None, self.log("server")
        try:
            return httpx.get(f"{self.api}/health", timeout=2, trust_env=False).is_success
        except httpx.TransportError:
            return False


def _processes() -> Iterator[tuple[int, set[str], list[bytes]]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            given = set((entry / "cmdline").read_bytes().decode(errors="replace").split("\0"))
            env = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            yield int(entry.name), given, env


@contextlib.contextmanager
def prefect_stack(**extra_env: str) -> Iterator[PrefectStack]:
    """A server; the caller deploys, and starts workers and rescue."""
    home = Path(tempfile.mkdtemp(prefix="prefect-stack-"))
    stack = PrefectStack(home, free_port(), dict(extra_env))
    try:
        stack.start_server()
        yield stack
    finally:
        stack.close()
        shutil.rmtree(home, ignore_errors=True)
