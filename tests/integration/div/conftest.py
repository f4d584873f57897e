"""A real server, the command with its key, and a name for a run."""

import uuid

import pytest

from tests.support.metrics_command import Command
from tests.support.metrics_server import running_server
from tests.support.telemetry_runs import RunAtServer


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("metrics") / "data") as server:
        yield server


@pytest.fixture
def div(server, monkeypatch, capsys, tmp_path):
    return Command(
        monkeypatch, capsys, tmp_path, "div", O41_METRICS_HOST=server.url, O41_METRICS_API_KEY=server.key
    )


@pytest.fixture
def name():
    return f"n-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def run(client, name):
    return RunAtServer(client, name)
