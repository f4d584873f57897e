"""The public clients as they are published, against the real server process."""

import atexit
import logging
import uuid

import duckdb
import o41_metrics_duckdb
import pytest
from syvain_metrics_collector import Collector

from tests.support.databases import KINDS
from tests.support.metrics_proxy import running_metrics_proxy
from tests.support.metrics_server import running_server, server_on


@pytest.fixture(scope="session", params=KINDS)
def server(request, tmp_path_factory):
    with server_on(request.param, tmp_path_factory.mktemp("clients") / "data", request) as server:
        yield server


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    """A server that tests stop and kill."""
    with running_server(tmp_path_factory.mktemp("stopped") / "data") as server:
        yield server


@pytest.fixture
def proxy(server):
    with running_metrics_proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def slug():
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def collecting():
    """Make a collector, which leaves at the end of the test as it would at the end of its process."""
    made = []

    def collect(server, *, host=None, **options):
        options.setdefault("logger", logging.getLogger("collected"))
        options.setdefault("request_timeout_seconds", 60.0)
        collector = Collector(server.key, host=host or server.url, **options)
        atexit.unregister(collector._on_exit)
        made.append(collector)
        return collector

    yield collect
    for collector in made:
        collector._on_exit()


@pytest.fixture
def attached(server):
    """Attach the server to a new DuckDB connection, as `m`."""
    made = []

    def attach(*, host=server.url, key=server.key, cache=None):
        connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        made.append(connection)
        o41_metrics_duckdb.load(connection)
        options = f"TYPE o41_metrics, API_KEY '{key}'" + (f", CACHE_DIR '{cache}'" if cache else "")
        connection.execute(f"ATTACH '{host}' AS m ({options})")
        return connection

    yield attach
    for connection in made:
        connection.close()
