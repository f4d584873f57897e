"""Starting and stopping the server as a command."""

import json
import os
import socket
import stat
import subprocess
import sys

import httpx
import pytest

from tests.support.metrics_server import MetricsClient, MetricsServer, running_server
from tests.support.ports import free_port


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "infra.metrics.main", "server", "start", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_start_makes_a_key_and_never_shows_it_and_the_second_keeps_it(tmp_path):
    server = MetricsServer(tmp_path / "deep" / "data")
    server.data.parent.mkdir()
    config = tmp_path / "config"
    server.start(env={"XDG_CONFIG_HOME": str(config)})
    try:
        assert (mode(server.data / "key"), mode(server.data)) == (0o600, 0o700)
        client = MetricsClient(server.url, server.key)
        (status,) = [client.http.get("/api/v2/auth/status", headers=client.authorization).json()["data"]]
        client.close()
        for name in ("syvain-metrics", "o41-metrics"):
            path = config / name / "auth.json"
            credentials = json.loads(path.read_text())
            assert mode(path) == 0o600
            assert credentials.keys() == {"apiKey", "host", "orgId", "loginAt"}
            assert (credentials["apiKey"], credentials["host"]) == (server.key, server.url)
            assert credentials["orgId"] == status["organization"]["id"]
    finally:
        assert server.stop() == 0
    printed = server.log.read_text()
    assert server.url in printed
    assert str(server.data / "key") in printed
    assert server.key not in printed
    assert server.key.encode() not in (server.data / "metrics.sqlite3").read_bytes()
    again = server.key
    server.start(env={"XDG_CONFIG_HOME": str(tmp_path / "unasked")})
    assert server.stop() == 0
    assert server.key == again
    assert not (tmp_path / "unasked").exists()


def test_a_database_is_its_owners_to_read_in_a_directory_that_everybody_looks_into(tmp_path):
    (data := tmp_path / "data").mkdir(mode=0o755)
    server = MetricsServer(data)
    server.start()
    try:
        kept = {path.name: oct(mode(path)) for path in data.glob("metrics.sqlite3*")}
    finally:
        server.stop()
    assert kept == {f"metrics.sqlite3{end}": "0o600" for end in ("", "-wal", "-shm")}


def test_what_stands_in_the_way_of_a_start_is_one_line_and_exit_2(tmp_path):
    with running_server(tmp_path / "data") as server:
        taken = run("--data", str(tmp_path / "other"), "--port", str(server.port))
        used = run("--data", str(tmp_path / "data"), "--port", str(free_port()))
    (tmp_path / "file").write_text("")
    unwritable = run("--data", str(tmp_path / "file"), "--port", str(free_port()))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "metrics.sqlite3").write_text("this is no database" * 1000)
    no_database = run("--data", str(tmp_path / "bad"), "--port", str(free_port()))
    for result, reason in [
        (taken, "cannot listen on 127.0.0.1 port"),
        (used, "in use by another server"),
        (unwritable, "cannot be written"),
        (no_database, "not a database"),
    ]:
        assert result.returncode == 2
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("syvain-metrics: ")
        assert reason in line
    assert not (tmp_path / "other").exists(), "the port is looked at first"


def test_a_folder_with_an_infra_of_its_own_is_no_place_to_import_from(tmp_path):
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "__init__.py").write_text("raise RuntimeError('shadowed')")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-P", "-m", "infra.metrics.main", "server", "start", "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "--no-login" in result.stdout


def test_a_request_in_flight_is_answered_before_a_stop(tmp_path):
    """Half of a batch is sent, then SIGTERM, then the rest: it is applied and acknowledged."""
    with running_server(tmp_path / "data") as server:
        client = MetricsClient(server.url, server.key)
        experiment = client.open("run")
        client.close()
        body = json.dumps([experiment.metric("m", 1.0, 0)]).encode()
        head = (
            f"POST /api/v2/experiments/{experiment.id}/events HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {experiment.token}\r\ncontent-length: {len(body)}\r\n"
            "expect: 100-continue\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(head.encode())
            assert connection.recv(1024).startswith(b"HTTP/1.1 100"), "without waiting a second for nothing"
            assert server.process is not None
            os.kill(server.process.pid, 15)
            connection.sendall(body)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert server.process.wait(60) == 0
        server.process = None


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/nothing", 404, "nothing at this address"),
        ("GET", "/dashboard/static/nothing.js", 404, "nothing at this address"),
        ("GET", "/api/v2/events", 405, "takes POST, got 'GET'"),
        ("PUT", "/api/v1/runs/x", 405, "takes GET, PATCH, got 'PUT'"),
        ("PUT", "/dashboard/static/nothing.js", 405, "takes GET, HEAD, got 'PUT'"),
    ],
)
def test_addresses_that_are_not_there_answer_in_the_one_shape(server, method, path, status, says):
    response = httpx.request(method, server.url + path, timeout=60)
    assert response.status_code == status
    assert response.json()["data"] is None
    assert says in response.json()["error"]["message"]


def test_health_is_told_to_anybody(server):
    response = httpx.get(f"{server.url}/healthz", timeout=60)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
