"""A login is checked before it is saved, saved where the public clients look, and never shown."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from infra.login_files import login_paths
from tests.support.metrics_command import environment


@pytest.fixture
def stranger(cli):
    """The command of somebody whose environment names no key and no server."""
    for variable in ("O41_METRICS_API_KEY", "O41_METRICS_HOST"):
        del cli.env[variable]
    return cli


@pytest.fixture
def files(tmp_path):
    return login_paths(tmp_path / "config")


def test_a_key_from_standard_input_is_checked_and_saved(stranger, server, files):
    said = stranger.ok("auth", "login", "--host", server.url + "/", stdin=server.key + "\n")
    assert said.out == ""
    assert said.err.splitlines() == [f"saved in {path}" for path in files]
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        login = json.loads(path.read_text())
        assert (login["apiKey"], login["host"]) == (server.key, server.url)
        assert type(login["loginAt"]) is int
    status = stranger.ok("auth", "status", "--json").json
    assert (status["host"], status["organisation_id"], status["role"]) == (
        server.url,
        login["orgId"],
        "owner",
    )
    assert ["role", "owner"] in stranger.ok("auth", "status").rows


def test_a_key_that_the_server_refuses_is_not_saved(stranger, server, files):
    refused = stranger("auth", "login", "--host", server.url, stdin="slk_wrong-secret\n")
    assert (refused.code, refused.out) == (1, "")
    assert "refuses the key" in refused.line
    assert "wrong-secret" not in refused.err
    assert not any(path.exists() for path in files)


def test_a_login_that_cannot_be_saved_is_one_line(stranger, server, files):
    files[0].parent.parent.write_text("a file where a directory is wanted")
    refused = stranger("auth", "login", "--host", server.url, stdin=server.key)
    assert (refused.code, server.key in refused.err) == (75, False)
    assert str(files[0].parent) in refused.line


def test_the_token_of_an_experiment_is_no_key(stranger, server, client, name, files):
    token = client.open(name).token
    refused = stranger("auth", "login", "--host", server.url, stdin=token)
    assert refused.code == 2
    assert "that is the token of one experiment, not a key" in refused.line
    assert not any(path.exists() for path in files)


def test_a_server_that_is_not_there_saves_nothing(stranger, files):
    refused = stranger("auth", "login", "--host", "http://127.0.0.1:1", stdin="slk_x")
    assert (refused.code, refused.out) == (75, "")
    assert "Metrics at http://127.0.0.1:1 cannot be reached" in refused.line
    assert not any(path.exists() for path in files)


def test_no_key_is_a_mistake(stranger, server):
    refused = stranger("auth", "login", "--host", server.url, stdin="\n")
    assert (refused.code, refused.line) == (
        2,
        "syvain-metrics: no key was given: type it at the prompt, or send it to standard input",
    )


def test_a_key_typed_at_the_prompt_is_not_shown(stranger, server, files):
    theirs, ours = pty.openpty()
    process = stranger.process(
        "auth", "login", "--host", server.url, stdin=ours, stdout=ours, stderr=ours, start_new_session=True
    )
    os.close(ours)
    shown = b""
    while b"API key" not in shown:
        shown += os.read(theirs, 1024)
    os.write(theirs, server.key.encode() + b"\n")
    try:
        while more := os.read(theirs, 1024):
            shown += more
    except OSError:
        pass  # Linux says so when the other side is gone
    os.close(theirs)
    assert process.wait(60) == 0
    assert server.key.encode() not in shown
    assert json.loads(files[0].read_text())["apiKey"] == server.key


def test_a_key_in_the_environment_is_said_to_go_first(cli, server):
    said = cli.ok("auth", "login", "--host", server.url, stdin=server.key)
    assert said.err.splitlines()[-1].startswith("a key in the environment")


@pytest.mark.parametrize("prefix", ["O41", "SYVAIN"])
def test_the_environment_names_the_server(stranger, server, prefix):
    stranger.env |= {f"{prefix}_METRICS_HOST": server.url, f"{prefix}_METRICS_API_KEY": server.key}
    assert stranger.ok("auth", "status", "--json").json["host"] == server.url


def test_logging_out_removes_both_files(stranger, server, files):
    stranger.ok("auth", "login", "--host", server.url, stdin=server.key)
    said = stranger.ok("auth", "logout")
    assert said.err.splitlines() == [f"removed {path}" for path in files]
    assert not any(path.exists() for path in files)
    assert stranger.ok("auth", "logout").err == ""
    refused = stranger("folder", "list")
    assert (refused.code, "there is no key for Metrics" in refused.line) == (2, True)


def test_no_command_shows_the_key(cli, server):
    process = subprocess.run(
        [str(Path(sys.executable).with_name("syvain-metrics")), "auth", "status"],
        env=environment(cli.env),
        capture_output=True,
        check=True,
    )
    assert server.key.encode() not in process.stdout + process.stderr
