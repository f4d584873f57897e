"""One real server process for the tests that only need it to answer: over SQLite, and over PostgreSQL."""

import contextlib
import uuid

import pytest

from tests.support.databases import KINDS
from tests.support.metrics_server import MetricsClient, running_server


@pytest.fixture(scope="session", params=KINDS)
def server(request, tmp_path_factory):
    data = tmp_path_factory.mktemp("metrics") / "data"
    with contextlib.ExitStack() as stack:
        database = None
        if request.param == "postgresql":
            database = stack.enter_context(request.getfixturevalue("postgres").database())
        yield stack.enter_context(running_server(data, database=database))


@pytest.fixture
def client(server):
    client = MetricsClient(server.url, server.key)
    yield client
    client.close()


@pytest.fixture
def slug():
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def experiment(client, slug):
    return client.open(slug)
