"""One real server process for the tests that only need it to answer."""

import uuid

import pytest

from tests.support.metrics_server import MetricsClient, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("metrics") / "data") as server:
        yield server


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
