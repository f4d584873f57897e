"""One real server process for the tests that only need it to answer: over SQLite, and over PostgreSQL."""

import uuid

import pytest

from tests.support.databases import KINDS
from tests.support.metrics_server import server_on


@pytest.fixture(scope="session", params=KINDS)
def server(request, tmp_path_factory):
    data = tmp_path_factory.mktemp("metrics") / "data"
    with server_on(request.param, data, request) as server:
        yield server


@pytest.fixture
def slug():
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def experiment(client, slug):
    return client.open(slug)
