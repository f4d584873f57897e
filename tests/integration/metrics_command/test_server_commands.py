"""The server is started, backed up while it runs, and restored, all from the command line."""

import json
import signal

import httpx
import pytest

from tests.support.metrics_command import Command
from tests.support.metrics_server import MetricsClient
from tests.support.ports import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def alone(monkeypatch, capsys, tmp_path):
    """The command where no server is yet."""
    return Command(monkeypatch, capsys, tmp_path, XDG_DATA_HOME=str(tmp_path / "share"))


@pytest.fixture
def start(alone, tmp_path):
    """Starts a server, and stops what still runs at the end."""
    started = []

    def begin(*arguments):
        port = free_port()
        log = tmp_path / f"server-{port}.log"
        with log.open("wb") as file:
            process = alone.process("server", "start", "--port", port, *arguments, stdout=file, stderr=file)
        started.append(process)
        url = f"http://127.0.0.1:{port}"

        def answers():
            assert process.poll() is None, log.read_text()
            try:
                return httpx.get(f"{url}/healthz", timeout=60).is_success
            except httpx.TransportError:
                return False

        wait_until(answers, within_s=60, poll_s=0.05)
        return process, url, log

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def test_the_first_start_leaves_a_login_that_every_command_uses(alone, start, tmp_path):
    process, url, log = start()
    key = (tmp_path / "share/syvain-metrics/key").read_text().strip()
    for client in ("syvain-metrics", "o41-metrics"):
        login = tmp_path / "config" / client / "auth.json"
        assert login.stat().st_mode & 0o777 == 0o600
        assert json.loads(login.read_text())["apiKey"] == key
    assert alone.ok("auth", "status", "--json").json["host"] == url
    alone.ok("folder", "create", "/mine")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    said = log.read_text()
    assert f"Metrics server at {url}" in said
    assert str(tmp_path / "share/syvain-metrics/key") in said
    assert "export SYVAIN_METRICS_API_KEY=" in said
    assert key not in said
    assert alone("folder", "list").code == 75


def test_no_login_is_left_where_none_is_asked_for(start, tmp_path):
    start("--data", tmp_path / "data", "--no-login")
    assert (tmp_path / "data/key").exists()
    assert not (tmp_path / "config").exists()


def test_a_backup_of_a_running_server_is_restored_elsewhere(alone, start, tmp_path):
    data, file, copy = tmp_path / "data", tmp_path / "backup", tmp_path / "copy"
    _, url, _ = start("--data", data)
    client = MetricsClient(url, (data / "key").read_text().strip())
    experiment = client.open("kept")
    experiment.send(*[experiment.metric("loss", 0.5 * step, step, timestampMs=step) for step in range(100)])
    points = client.points(experiment.id)
    said = alone.apart("server", "backup", file, "--data", data)
    assert (said.code, said.out, said.line) == (0, "", f"{file.stat().st_size:,} bytes in {file}")
    assert alone.apart("server", "restore", file, "--data", copy).line.startswith(
        f"{file} is restored in {copy}"
    )
    _, other, _ = start("--data", copy, "--no-login")
    there = MetricsClient(other, client.key)
    assert there.points(experiment.id) == points
    client.close()
    there.close()


def test_tables_are_brought_up_to_date_without_a_server(alone, tmp_path):
    said = alone.apart("server", "migrate", "--data", tmp_path / "data")
    assert said.line.startswith(f"{tmp_path}/data/metrics.sqlite3: the tables are those of version ")
    again = alone.apart("server", "migrate", "--data", tmp_path / "data")
    assert "they were" in again.line


def test_a_second_organisation_has_a_key_of_its_own_that_is_shown_once(alone, start, tmp_path):
    data = tmp_path / "data"
    _, url, log = start("--data", data, "--no-login")
    said = alone.apart("server", "organisation", "add", "Lab 2", "--data", data)
    key = said.out.strip()
    assert (said.code, said.out) == (0, key + "\n")
    assert key not in said.err
    client = MetricsClient(url, key)
    client.open("mine")
    client.close()
    as_json = alone.apart("server", "organisation", "add", "Lab 3", "--data", data, "--json").json
    assert as_json["organization"]["name"] == "Lab 3"
    assert as_json["secret"].startswith("slk_")
    listed = alone.apart("server", "organisation", "list", "--data", data, "--json").json
    assert [one["name"] for one in listed] == ["local", "Lab 2", "Lab 3"]
    assert "Lab 2" in alone.apart("server", "organisation", "list", "--data", data).out
    assert alone.apart("server", "organisation", "add", "Lab 2", "--data", data).code == 2
    assert key not in log.read_text()


def test_a_directory_is_compacted(alone, tmp_path):
    alone.apart("server", "migrate", "--data", tmp_path / "data")
    said = alone.apart("server", "compact", "--data", tmp_path / "data")
    assert (said.code, said.out) == (0, "")
    assert "bytes before" in said.line


@pytest.mark.parametrize("command", [["migrate"], ["compact"], ["start", "--port", "0"], ["restore", "FILE"]])
def test_a_directory_that_a_server_holds_is_refused(alone, start, tmp_path, command):
    start("--data", tmp_path / "data", "--no-login")
    given = [str(tmp_path / "none") if word == "FILE" else word for word in command]
    refused = alone.apart("server", *given, "--data", tmp_path / "data")
    assert (refused.code, refused.out) == (2, "")
    assert "in use by another server" in refused.line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["backup", "FILE", "--data", "NONE"], "there is no database at"),
        (["restore", "NONE", "--data", "FRESH"], "none"),
        (["start", "--data", "NONE", "--database", "postgresql://h/d"], "got both"),
        (["compact", "--data", "FRESH"], "there is no database at"),
        (["organisation", "add", "x", "--data", "NONE"], "there is no database at"),
        (["migrate", "--database", "mysql://h/d"], "mysql"),
        (["start", "--data", "/proc/nothing"], "/proc/nothing cannot be written"),
        (["start", "--host", "256.0.0.1", "--data", "FRESH"], "cannot listen on 256.0.0.1"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_line_and_exit_2(alone, tmp_path, arguments, says):
    given = [str(tmp_path / word.lower()) if word.isupper() else word for word in arguments]
    refused = alone.apart("server", *given)
    assert (refused.code, refused.out) == (2, "")
    assert says in refused.line


def test_a_url_in_the_environment_is_not_shown(alone):
    alone.env["SYVAIN_METRICS_DATABASE"] = "postgresql://somebody:hunter2@127.0.0.1:1/metrics"
    refused = alone.apart("server", "migrate")
    assert (refused.code, refused.out) == (2, "")
    assert "hunter2" not in refused.err
    assert "127.0.0.1" in refused.line


def test_a_server_stops_on_ctrl_c(start, tmp_path):
    process, _, _ = start("--data", tmp_path / "data", "--no-login")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
