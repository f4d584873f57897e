"""MLflow's and Trackio's own servers under the points of `metrics_server.py`, each on the servers' core.

Both keep their points in SQLite. MLflow leaves it as it comes, which is durable; Trackio switches the flush
of each commit off, and is told to switch it on again.
"""

# ruff: noqa: D102 - what a method of `Peer` returns stands there
from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks.metrics_processes import (
    Client,
    Sent,
    on_the_servers_core,
    resident_mib,
    size_of,
    together,
)
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MLflow", "Peer", "Trackio"]

HERE = Path(__file__).parent
PYTHON = Path(sys.prefix) / "peers" / "bin" / "python"
"""Of the environment that `make bench` makes for them inside the benchmarks' own."""


class Peer(ABC):
    """A server of somebody else, in a directory of its own."""

    name: str
    clients: int
    """Those at once with which it is fastest."""

    def __init__(self, folder: Path, python: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.python = python.absolute()
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder.with_suffix(".log")
        self.env = {
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(HERE),
            "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "TRACKIO_DIR": str(folder), "TRACKIO_WRITE_TOKEN": "benchmark",
            "TRACKIO_SQLITE_SYNCHRONOUS": "FULL",
        }  # fmt: skip

    @abstractmethod
    def command(self) -> list[str]:
        """Return what starts the server."""

    @abstractmethod
    def write_client(self, slug: str, file: Path) -> Client:
        """Return a client that sends the points of a file."""

    @abstractmethod
    def read(self, points: int) -> dict[str, Any]:
        """Return how long a long series takes to read, and to draw."""

    @contextmanager
    def serving(self) -> Iterator[int]:
        """Serve; yields the process."""
        with self.log.open("a") as log, on_the_servers_core():
            process = subprocess.Popen(
                self.command(), env=os.environ | self.env, cwd=self.folder, stdout=log, stderr=log
            )
        try:
            deadline = time.monotonic() + 240
            while not self._answers():
                assert process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, f"{self.name} does not answer: {self.log.read_text()}"
                time.sleep(0.1)
            yield process.pid
        finally:
            process.terminate()
            process.wait(timeout=30)

    def write(self, files: Sequence[Path], points: int) -> Sent:
        """Bring the points of the files to it, each by a client of its own at the same time."""
        with self.serving() as pid:
            size = size_of(self.folder, "**/*.db*")
            seconds, cpu, latencies = together([self.write_client(file.stem, file) for file in files], pid)
            rss = resident_mib(pid)
        size = size_of(self.folder, "**/*.db*") - size
        return Sent(points, seconds, cpu, latencies, size, rss)

    def client(self, *arguments: str) -> Client:
        """Start a client in its environment."""
        return Client([*self._python_code(), *arguments], self.env)

    def _python_code(self) -> list[str]:
        return [str(self.python), "-c", "import metrics_peer_clients as c; c.main()"]

    def _asked(self, *arguments: str) -> dict[str, Any]:
        client = self.client(*arguments)
        client.ready()
        client.go()
        told = client.told()
        client.ended()
        return told

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url, timeout=1).status_code < 500
        except httpx.TransportError:
            return False


class MLflow(Peer):
    """A tracking server with one worker, as it has one core; written with `log_batch` of 1,000."""

    name = "MLflow"
    clients = 1  # several lock one another out: four get 150 points a second in

    def command(self) -> list[str]:
        host, port = self.url.removeprefix("http://").split(":")
        return [
            str(self.python), "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self._database}",
            "--host", host, "--port", port, "--workers", "1",
            "--artifacts-destination", str(self.folder / "files"),
        ]  # fmt: skip

    def write_client(self, slug: str, file: Path) -> Client:
        return self.client("mlflow_write", self.url, slug, str(file))

    def read(self, points: int) -> dict[str, Any]:
        """Read a series that was put into its table by hand, since logging it would take minutes."""
        with self.serving():
            with closing(sqlite3.connect(self._database)) as database, database:
                ((run,),) = database.execute("SELECT run_uuid FROM runs LIMIT 1").fetchall()
                database.executemany(
                    "INSERT INTO metrics (key, value, timestamp, step, is_nan, run_uuid)"
                    " VALUES ('long', ?, ?, ?, 0, ?)",
                    ((step / 7, 1_700_000_000_000 + step, step, run) for step in range(points)),
                )
            return self._asked("mlflow_read", self.url, run, "long")

    @property
    def _database(self) -> Path:
        return self.folder / "mlflow.db"


class Trackio(Peer):
    """Its dashboard's server; written with `bulk_log` of 500 steps."""

    name = "Trackio"
    clients = 4

    def command(self) -> list[str]:
        return [*self._python_code(), "trackio_serve", self.url.rpartition(":")[2]]

    def write_client(self, slug: str, file: Path) -> Client:
        return self.client("trackio_write", self.url, slug, str(file))

    def read(self, points: int) -> dict[str, Any]:
        """Read a series that its store's own call wrote in few, large pieces."""
        subprocess.run(
            [*self._python_code(), "trackio_fill", "long", str(points)],
            env=os.environ | self.env, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        with self.serving():
            return self._asked("trackio_read", self.url, "long", "loss")
