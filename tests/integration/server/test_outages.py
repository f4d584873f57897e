"""The database is held, gone or read-only: 503, nothing half-applied, and nobody has to help afterwards."""

import os
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path

import pytest

from infra.server import upkeep
from infra.server.datadir import DataDir
from infra.server.refusals import Unusable
from tests.support.metrics_server import MetricsClient, MetricsServer, running_server
from tests.support.users import unprivileged


def refused(response):
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert response.json()["error"]["details"] == "code=unavailable"


def delivered(client, experiment, events):
    """The same batch is taken when it comes again, twice, and is there once."""
    experiment.send(*events)
    experiment.send(*events)
    found = client.points(experiment.id)["m", ()]
    assert [step for step, _, _ in found] == list(range(len(events)))


def test_a_file_that_another_process_holds(tmp_path):
    with running_server(tmp_path / "data") as server:
        client = MetricsClient(server.url, server.key)
        experiment = client.open("run")
        events = [experiment.metric("m", 1.0, step) for step in range(10)]
        holder = sqlite3.connect(server.data / "metrics.sqlite3", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        refused(experiment.post(events))
        assert client.points(experiment.id) == {}, "reads go on"
        holder.execute("ROLLBACK")
        holder.close()
        delivered(client, experiment, events)
        client.close()


def test_postgresql_that_stops_and_comes_back(own_postgres, tmp_path):
    with own_postgres.database() as url, running_server(tmp_path / "data", database=url) as server:
        client = MetricsClient(server.url, server.key)
        experiment = client.open("run")
        events = [experiment.metric("m", 1.0, step) for step in range(10)]
        own_postgres.stop()
        refused(experiment.post(events))
        refused(client.http.get("/api/v2/auth/status", headers=client.authorization))
        own_postgres.start()
        delivered(client, experiment, events)
        client.close()
    assert own_postgres.password not in server.log.read_text()


def test_two_servers_over_one_database_apply_what_either_is_sent_once_and_in_order(postgres, tmp_path):
    """A client that is sent to the other server in the middle, as behind a load balancer."""
    with (
        postgres.database() as url,
        running_server(tmp_path / "first", database=url) as first,
        running_server(tmp_path / "second", database=url) as second,
    ):
        clients = [MetricsClient(server.url, first.key) for server in (first, second)]
        runs = [clients[0].open(f"run-{n}") for n in range(4)]

        def send(run):
            for step in range(0, 50, 5):
                events = [run.metric("m", 1.0, one) for one in range(step, step + 5)]
                for client in (clients[step % 2], clients[1 - step % 2]):
                    run.client = client
                    run.send(*events)

        threads = [threading.Thread(target=send, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for run in runs:
            for client in clients:
                assert [step for step, _, _ in client.points(run.id)["m", ()]] == list(range(50))
        for client in clients:
            client.close()


def test_servers_that_start_at_once_over_an_empty_database_make_one_organisation(postgres, tmp_path):
    with postgres.database() as url:
        servers = [MetricsServer(tmp_path / f"{n}" / "data", database=url) for n in range(2)]
        threads = []
        for server in servers:
            server.data.parent.mkdir()
            threads.append(threading.Thread(target=server.start))
            threads[-1].start()
        for thread in threads:
            thread.join()
        for server in servers:
            assert server.stop() == 0
        name = url.rsplit("/", 1)[1]
        assert postgres.run("SELECT count(*) FROM organisations", database=name) == [(1,)]
        assert len(list(tmp_path.glob("*/data-config/syvain-metrics/*.key"))) == 1


def test_a_directory_that_cannot_be_written_is_one_line_and_serves_once_it_can(reachable):
    upkeep.migrate(DataDir(reachable / "first"))  # whatever is imported only then may not be reached later
    data = reachable / "data"
    data.mkdir(0o500)
    if os.geteuid() == 0:
        shutil.chown(data, "nobody")
    with unprivileged(), pytest.raises(Unusable, match="cannot be written: Permission denied") as refusal:
        upkeep.migrate(DataDir(data))
    assert "\n" not in str(refusal.value)
    assert list(data.iterdir()) == []
    data.chmod(0o700)
    with unprivileged():
        assert upkeep.migrate(DataDir(data)) == (None, "0003")


@pytest.fixture
def reachable():
    """A folder that an unprivileged user reaches; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="outages-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)
