"""The real Metrics server as a process on a free port with a data directory, and a client of it."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.server_forge import fork_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.server_forge import ForkedServer

__all__ = ["Experiment", "MetricsClient", "MetricsServer", "client", "running_server", "server_on"]

_PREFIX = "syvain.v2."


class MetricsServer:
    """One server process at a time over one data directory; it may be killed and started again.

    With `database`, a PostgreSQL URL, the directory holds the log and the first key only. `is_forked`: from a
    process that has imported all of it, with that one's cores and memory; else as a user starts it.
    """

    def __init__(
        self, data: Path, *, port: int | None = None, database: str | None = None, is_forked: bool = True
    ) -> None:
        self.data = data
        self.is_forked = is_forked
        self.database = database
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = data.with_name("server.log")
        self.process: ForkedServer | subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> str:
        """The key that the first start made."""
        (file,) = self._config.glob("syvain-metrics/*.key") if self.database else [self.data / "key"]
        return file.read_text().strip()

    @property
    def _config(self) -> Path:
        """Where the process looks for a user's configuration: not in that of whoever runs the tests."""
        return self.data.with_name(f"{self.data.name}-config")

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """Start the process and wait until it answers."""
        command = ["server", "start", "--port", str(self.port)]
        environment = os.environ | {"XDG_CONFIG_HOME": str(self._config)} | dict(env or {})
        if self.database:
            environment["SYVAIN_METRICS_DATABASE"] = self.database
        else:
            command += ["--data", str(self.data)]
        if self.is_forked:
            self.process = fork_server([*command, *arguments], log=self.log, env=environment)
        else:
            with self.log.open("a") as log:
                executed = [sys.executable, "-m", "infra.metrics.main", *command, *arguments]
                self.process = subprocess.Popen(executed, stdout=log, stderr=log, env=environment)
            atexit.register(self.process.kill)  # whatever fails meanwhile
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL, as a power cut to the process."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        assert self.process is not None
        status = self.process.wait(timeout=60)
        self.process = None
        return status

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=1).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def running_server(data: Path, *, database: str | None = None) -> Iterator[MetricsServer]:
    """A started server that is stopped at the end, if it still runs."""
    server = MetricsServer(data, database=database)
    server.start()
    try:
        yield server
    finally:
        if server.process is not None:
            server.stop()


@contextmanager
def server_on(kind: str, data: Path, request: pytest.FixtureRequest) -> Iterator[MetricsServer]:
    """A started server over a database of that kind, one of `tests.support.databases.KINDS`."""
    with ExitStack() as stack:
        database = None
        if kind == "postgresql":
            database = stack.enter_context(request.getfixturevalue("postgres").database())
        yield stack.enter_context(running_server(data, database=database))


@pytest.fixture
def client(server: MetricsServer) -> Iterator[MetricsClient]:
    """A client of whatever server the test has, with the key of its first start."""
    client = MetricsClient(server.url, server.key)
    yield client
    client.close()


@dataclass
class Experiment:
    """An opened experiment, written to with its token. `sender` makes our own kind of message ids."""

    client: MetricsClient
    id: str
    token: str
    opened: Mapping[str, Any]
    sender: str = field(default_factory=lambda: uuid.uuid4().hex)
    sequence: int = 0

    def event(self, name: str, /, *, message_id: str | None = None, **data: Any) -> dict[str, Any]:
        """Make one event with the next message id."""
        if message_id is None:
            message_id = f"{self.sender}.{self.sequence}"
            self.sequence += 1
        return {
            "messageId": message_id,
            "event": f"{_PREFIX}experiment.{name}",
            "data": {"experimentId": self.id, **data},
        }

    def metric(self, name: str, value: float, step: int, **more: Any) -> dict[str, Any]:
        """Make one metric event."""
        return self.event("metric", metricName=name, metricValue=value, step=step, **more)

    def post(self, events: Sequence[Any] | bytes, **headers: str) -> httpx.Response:
        """Send a batch and return the response as it is."""
        body = {"content": events} if isinstance(events, bytes) else {"json": events}
        return self.client.http.post(
            f"/api/v2/experiments/{self.id}/events",
            headers={"authorization": f"Bearer {self.token}", **headers},
            **body,
        )

    def send(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        """Send a batch that must be answered event by event; return the replies."""
        response = self.post(events)
        assert response.status_code == 200, response.text
        replies: list[dict[str, Any]] = response.json()
        assert [reply["correlationId"] for reply in replies] == [event["messageId"] for event in events]
        return replies


class MetricsClient:
    """Speaks the v2 protocol plainly: what the tests say is what is sent."""

    def __init__(self, url: str, key: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=30)
        self.key = key

    @property
    def authorization(self) -> dict[str, str]:
        """The header that carries the key."""
        return {"authorization": f"Bearer {self.key}"}

    def post(self, events: Any) -> httpx.Response:
        """Send org events and return the response as it is."""
        return self.http.post("/api/v2/events", json=events, headers=self.authorization)

    def ask(self, name: str, /, *, message_id: str = "0", **data: Any) -> dict[str, Any]:
        """Send one org event and return its reply."""
        response = self.post([{"messageId": message_id, "event": _PREFIX + name, "data": data}])
        assert response.status_code == 200, response.text
        (reply,) = response.json()
        assert reply["correlationId"] == message_id
        return dict(reply)

    def data(self, name: str, /, **data: Any) -> dict[str, Any]:
        """Send one org event that must succeed and return its reply's data."""
        reply = self.ask(name, **data)
        assert reply["event"] != _PREFIX + "error", reply
        return dict(reply["data"])

    def open(self, slug: str, *, sender: str | None = None, **more: Any) -> Experiment:
        """Open an experiment. `sender` continues the session of a process that opened it before."""
        sender = sender or uuid.uuid4().hex
        reply = self.ask("experiment.open", slug=slug, **more)
        assert reply["event"] == _PREFIX + "experiment.opened", reply
        data = reply["data"]
        return Experiment(self, data["experimentId"], data["experimentToken"], data, sender)

    def record(self, experiment_id: str) -> dict[str, Any]:
        """Read an experiment's record."""
        return dict(self.data("query.experiment", experimentId=experiment_id)["experiment"])

    def stream(self, experiment_id: str, **more: Any) -> list[dict[str, Any]]:
        """Read the series stream's lines."""
        query = {"experimentId": experiment_id, **more}
        response = self.http.post(
            "/api/v2/query/series",
            json={"messageId": "series", "event": _PREFIX + "query.experimentseries", "data": query},
            headers=self.authorization,
        )
        assert response.status_code == 200, response.text
        return [json.loads(line) for line in response.iter_lines() if line]

    def points(
        self, experiment_id: str, **more: Any
    ) -> dict[tuple[str, tuple[tuple[str, str], ...]], list[Any]]:
        """Read all points: (name, metadata items) -> [(step, timestamp, value), ...] along the axis."""
        found: dict[tuple[str, tuple[tuple[str, str], ...]], list[Any]] = {}
        for line in self.stream(experiment_id, **more):
            if line["event"] == _PREFIX + "query.series.data":
                data = line["data"]
                key = (data["seriesName"], tuple(sorted(data["metadata"].items())))
                columns = data["data"]
                found.setdefault(key, []).extend(
                    zip(columns["step"], columns["timestampMs"], columns["value"], strict=True)
                )
        return found

    def close(self) -> None:
        """Close the connections."""
        self.http.close()
