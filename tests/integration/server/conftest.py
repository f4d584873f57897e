"""One real server process for the tests that only need it to answer: over SQLite, and over PostgreSQL."""

import uuid

import pytest

from tests.support.databases import KINDS
from tests.support.metrics_server import server_on


@pytest.fixture(scope="session")
def sqlite_server(request, tmp_path_factory):
    with server_on("sqlite", tmp_path_factory.mktemp("metrics") / "data", request) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_server(request, tmp_path_factory):
    with server_on("postgresql", tmp_path_factory.mktemp("metrics") / "data", request) as server:
        yield server


@pytest.fixture(scope="session", params=KINDS)
def server(request):
    """Either; both go on to the end of the session, whichever is asked for."""
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def slug():
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def experiment(client, slug):
    return client.open(slug)
