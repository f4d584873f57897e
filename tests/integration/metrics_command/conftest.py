"""A real server, and the command with its key."""

import uuid

import pytest

from tests.support.metrics_command import Command
from tests.support.metrics_server import running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("metrics") / "data") as server:
        yield server


@pytest.fixture
def cli(server, monkeypatch, capsys, tmp_path):
    return Command(monkeypatch, capsys, tmp_path, O41_METRICS_HOST=server.url, O41_METRICS_API_KEY=server.key)


@pytest.fixture
def name():
    return f"n-{uuid.uuid4().hex[:12]}"
