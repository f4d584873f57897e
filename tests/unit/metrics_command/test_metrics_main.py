"""syvain-metrics: a mistake is one line and exit 2, whatever it is, and commands start at once."""

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import threading

import pytest

from tests.support.metrics_command import Command

HEAVY = ("torch", "prefect", "sqlalchemy", "alembic", "fastapi", "pandas", "pyarrow", "boto3", "numpy")


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """The command with the key of a server that is not there."""
    return Command(
        monkeypatch, capsys, tmp_path, O41_METRICS_HOST="http://127.0.0.1:1", O41_METRICS_API_KEY="slk_x"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["foldr"], "No such command 'foldr'"),
        (["folder", "lst"], "No such command 'lst'"),
        (["folder", "list", "--jsn"], "No such option: --jsn"),
        (["folder", "create"], "Missing argument 'PATH'"),
        (["folder", "create", "name"], "a folder is a path that starts with / or an id, got 'name'"),
        (["folder", "create", "/"], "the root / is always there: give a path such as /lr-sweep"),
        (["folder", "rename", "/", "x"], "the root / stays as it is: name a folder"),
        (["folder", "delete", "/a"], "Nobody is there to answer: give --yes to go on"),
        (["folder", "move", "/a", "b"], "a folder is a path that starts with / or an id, got 'b'"),
        (["experiment", "list", "--status", "ok"], "--status must be one of created, running, done, error"),
        (["experiment", "list", "--limit", "0"], "--limit"),
        (["experiment", "move", "run", "x"], "a folder is a path that starts with / or an id, got 'x'"),
        (["metric", "get", "run", "loss", "--axis", "time"], "--axis must be step or timestamp, got 'time'"),
        (["annotation", "add", "run", "text", "--meta", "[1]"], "--meta must be a JSON object, got '[1]'"),
        (["annotation", "add", "run", "text", "--step", "-1"], "--step"),
        (
            ["annotation", "add", "run", "text", "--step", "9007199254740991"],
            "--step: a step must be an integer from 0 to 9007199254740990, got 9007199254740991",
        ),
        (["annotation", "list", "run", "--limit", "10001"], "--limit"),
        (["annotation", "add", "run", "text", "--meta", '{"a": NaN}'], "NaN is no number in JSON"),
        (["annotation", "add", "run", "text", "--meta", "[" * 5000], "--meta must be a JSON object"),
        (["experiment", "show", "r\udcff"], "is no UTF-8 text: give one that is"),
        (["folder", "create", "/f\udcff"], "is no UTF-8 text: give one that is"),
        (["folder", "rename", "/a\udcff", "b"], "is no UTF-8 text: give one that is"),
        (["folder", "rename", "/a", "b/c"], "a folder's name must not be empty and has no slash, got 'b/c'"),
        (["folder", "rename", "/a", ""], "a folder's name must not be empty and has no slash, got ''"),
        (["key", "create", "k", "--role", "god"], "the role must be viewer, member or owner, got 'god'"),
        (["member", "add", "a@b", "--role", "god"], "the role must be viewer, member or owner, got 'god'"),
        (["member", "role", "a@b", "god"], "the role must be viewer, member or owner, got 'god'"),
        (["view", "save", "v", "/none.json"], "/none.json cannot be read"),
        (["key", "create"], "Missing argument 'NAME'"),
        (["key", "revoke", ""], "an id must not be empty"),
        (["export", "run"], "Missing option '--output'"),
        (["export", "-o", "x.csv"], "nothing to export was named"),
        (["export", "run", "-o", "x.txt"], "--format must be one of csv, jsonl, parquet"),
        (["export", "run", "-o", "-"], "--format must be one of csv, jsonl, parquet"),
        (["export", "run", "-o", "x.csv", "--format", "xml"], "got 'xml'"),
        (["export", "run", "-o", "-", "--format", "parquet"], "Parquet needs a file"),
        (["export", "run", "-o", "none/x.csv"], "--output must be a file in a directory that is there"),
        (["import", "/none.jsonl"], "/none.jsonl cannot be read: No such file or directory"),
        (["import"], "Missing argument 'FILE...'"),
        (["server", "start", "--port", "70000"], "--port"),
        (["server", "start", "--data", ""], "--data must name a directory, got ''"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_2(cli, arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = cli(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert refused.line.startswith("syvain-metrics: ")
    assert says in refused.line
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("arguments", [["export", "run", "--format", "csv", "-o"], ["server", "backup"]])
def test_a_pipe_is_not_replaced_by_a_file(cli, arguments, tmp_path):
    """As a device such as /dev/null would be, of which there is one for everybody."""
    with sqlite3.connect(tmp_path / "metrics.sqlite3") as database:
        database.execute("CREATE TABLE t (a)")
    database.close()
    os.mkfifo(pipe := tmp_path / "pipe")
    refused = cli(*arguments, pipe, *(["--data", tmp_path] if arguments[0] == "server" else []))
    assert (refused.code, refused.out) == (2, "")
    assert "file" in refused.line
    assert pipe.is_fifo()


def test_without_a_key_what_to_do_is_said(cli):
    del cli.env["O41_METRICS_API_KEY"]
    refused = cli("folder", "list")
    assert (refused.code, "there is no key for Metrics: set O41_METRICS_API_KEY" in refused.line) == (2, True)
    assert 'eval "$(slugline env)"' in refused.line, "what a newcomer with the local stack needs"


READING = [
    ["folder", "list"],
    ["experiment", "list"],
    ["experiment", "show", "run"],
    ["metric", "list", "run"],
    ["metric", "get", "run", "loss"],
    ["annotation", "list", "run"],
    ["view", "list"],
    ["view", "show", "v"],
    ["key", "list"],
    ["member", "list"],
    ["auth", "status"],
    ["export", "run", "-o", "x.csv"],
]


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_server_that_is_not_there_is_one_line_and_exit_75(cli, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = cli(*arguments)
    assert (refused.code, refused.out) == (75, "")
    assert "Metrics at http://127.0.0.1:1 cannot be reached" in refused.line


def test_commands_load_nothing_that_they_do_not_need(cli):
    assert cli.loads(HEAVY, [["--help"], *READING]) == [(0, []), *[(75, []) for _ in READING]]


@pytest.mark.parametrize("arguments", [["--help"], ["folder", "list"]], ids=" ".join)
def test_a_command_starts_at_once(cli, arguments):
    # Alone, start to end: 0.18 s, and 0.29 s with an answer.
    assert cli.takes_less(4, *arguments)


def test_a_path_with_folders_called_like_our_packages_changes_nothing(cli, tmp_path):
    for package in ("flows", "infra", "runtime"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError('not ours')")
    cli.env["PYTHONPATH"] = str(tmp_path)
    said = cli.apart("folder", "list")
    assert (said.code, "cannot be reached" in said.line) == (75, True)


def test_ctrl_c_ends_with_130_and_no_word(cli):
    """The server takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connected = threading.Event()

        def accept():
            connection, _ = listener.accept()
            connected.set()
            with connection:
                connection.recv(1 << 16)
                with contextlib.suppress(ConnectionError):
                    connection.recv(1)  # until the command is gone

        thread = threading.Thread(target=accept)
        thread.start()
        cli.env["O41_METRICS_HOST"] = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = cli.process("folder", "list", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert connected.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        thread.join(60)
    assert (process.returncode, out, err) == (130, b"", b"")
