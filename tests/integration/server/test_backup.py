"""Backups made while the server is written to, restored elsewhere, on both databases."""

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from infra.server import upkeep
from infra.server.datadir import DataDir, RemoteDatabase
from infra.server.refusals import Unusable
from infra.server.serving import open_store
from tests.support.databases import KINDS
from tests.support.metrics_server import MetricsClient, MetricsServer, running_server
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def programs(postgres, monkeypatch):
    """The programs of the PostgreSQL that runs here, not of an older one of the system."""
    monkeypatch.setenv("PATH", f"{postgres.programs}:{os.environ['PATH']}")


@pytest.fixture(params=KINDS)
def origin(request, postgres, tmp_path):
    """A running server, and its place."""
    if request.param == "sqlite":
        with running_server(tmp_path / "data") as server:
            yield server, DataDir(server.data)
        return
    with postgres.database() as url, running_server(tmp_path / "data", database=url) as server:
        yield server, RemoteDatabase(url)


@pytest.fixture
def empty(origin, postgres, tmp_path):
    """An empty place of the same kind, and a server that is not started yet."""
    if isinstance(origin[1], DataDir):
        yield MetricsServer(tmp_path / "restored"), DataDir(tmp_path / "restored")
        return
    with postgres.database() as url:
        yield MetricsServer(tmp_path / "restored", database=url), RemoteDatabase(url)


class Load(threading.Thread):
    """Writes one point after another; `acknowledged` is how many of them the server has answered."""

    def __init__(self, server, slug):
        super().__init__()
        self.client = MetricsClient(server.url, server.key)
        self.experiment = self.client.open(slug)
        self.acknowledged = 0
        self.over = threading.Event()

    def run(self):
        while not self.over.is_set():
            self.experiment.send(self.experiment.metric("m", 0.5, self.acknowledged, timestampMs=1))
            self.acknowledged += 1

    def wait_for(self, count):
        while self.acknowledged < count:
            self.over.wait(0.002)

    def end(self):
        self.over.set()
        self.join()
        self.client.close()


def test_a_backup_under_load_holds_what_was_acknowledged_before_it_and_the_server_goes_on(
    origin, empty, tmp_path
):
    server, place = origin
    loads = [Load(server, f"run-{n}") for n in range(4)]
    for load in loads:
        load.start()
    try:
        for load in loads:
            load.wait_for(30)
        before = [load.acknowledged for load in loads]
        size_bytes = upkeep.backup(place, tmp_path / "backup")
        after = [load.acknowledged for load in loads]
        for load, count in zip(loads, after, strict=True):
            load.wait_for(count + 20)
    finally:
        for load in loads:
            load.end()
    assert size_bytes == (tmp_path / "backup").stat().st_size
    assert sorted(path.name for path in tmp_path.glob("*backup*")) == ["backup"], "and nothing beside it"
    restored, target = empty
    upkeep.restore(target, tmp_path / "backup")
    restored.start()
    client = MetricsClient(restored.url, server.key)  # the keys of then are good
    for load, least in zip(loads, before, strict=True):
        steps = [step for step, _, _ in client.points(load.experiment.id)["m", ()]]
        assert steps == list(range(len(steps))), "a whole state: nothing missing before the last"
        assert least <= len(steps) <= load.acknowledged
        later = client.open(load.experiment.opened.get("slug", f"run-{loads.index(load)}"))
        assert later.id == load.experiment.id
        later.send(later.metric("m", 1.0, 10**6))
    client.close()
    assert restored.stop() == 0


def test_a_restore_takes_an_empty_place_only_and_leaves_others_as_they_are(origin, tmp_path):
    server, place = origin
    upkeep.backup(place, tmp_path / "backup")
    with pytest.raises(Unusable, match=r"in use by another server|not empty"):
        upkeep.restore(place, tmp_path / "backup")
    server.stop()
    with pytest.raises(Unusable, match="not empty"):
        upkeep.restore(place, tmp_path / "backup")
    server.start()
    client = MetricsClient(server.url, server.key)
    assert client.http.get("/api/v2/auth/status", headers=client.authorization).status_code == 200
    client.close()


def test_what_is_no_backup_of_that_kind_is_refused_and_nothing_is_left_behind(origin, empty, tmp_path):
    _, place = origin
    _, target = empty
    good = tmp_path / "good"
    upkeep.backup(place, good)
    (tmp_path / "text").write_text("no backup")
    (tmp_path / "nothing").write_bytes(b"")
    (tmp_path / "half").write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("CREATE TABLE t (id INTEGER)")
    other.close()
    for name in ("text", "nothing", "half", "other", "missing"):
        with pytest.raises(Unusable) as refused:
            upkeep.restore(target, tmp_path / name)
        assert "\n" not in str(refused.value)
    if isinstance(target, DataDir):
        assert [path.name for path in target.path.iterdir()] == ["lock"]
    upkeep.restore(target, good)
    open_store(target).close()


def test_a_backup_that_fails_leaves_the_older_one_and_its_server_alone(origin, tmp_path):
    """The command may write no file larger than a few pages, as on a disk that is full."""
    server, place = origin
    file = tmp_path / "backup"
    upkeep.backup(place, file)
    older = file.read_bytes()
    client = MetricsClient(server.url, server.key)
    experiment = client.open("run")
    experiment.send(*[experiment.metric(f"m{n}", 1.0, 0, meta={"k": "v" * 500}) for n in range(500)])
    where = ["--data", str(server.data)] if server.database is None else ["--database", server.database]
    result = subprocess.run(
        [sys.executable, "-m", "infra.metrics.main", "server", "backup", str(file), *where],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_files,
    )
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert file.read_bytes() == older
    assert sorted(path.name for path in tmp_path.glob("*backup*")) == ["backup"]
    experiment.send(experiment.metric("m", 1.0, 1))
    client.close()


def limit_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))


def test_the_database_itself_is_no_place_for_its_backup(tmp_path):
    place = DataDir(tmp_path)
    open_store(place).close()
    with pytest.raises(Unusable, match="is the database itself"):
        upkeep.backup(place, place.database)
    with pytest.raises(Unusable, match="there is no database"):
        upkeep.backup(DataDir(tmp_path / "none"), tmp_path / "backup")
    with pytest.raises(Unusable, match="cannot be written"):
        upkeep.backup(place, tmp_path / "none" / "backup")
    with pytest.raises(Unusable, match="cannot be written: Not a directory"):
        upkeep.backup(place, place.database / "backup")


def test_without_the_programs_of_postgresql_an_error_says_what_to_run(postgres, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with postgres.database() as url:
        with pytest.raises(Unusable, match=r"pg_dump is not installed.*--format=custom") as refused:
            upkeep.backup(RemoteDatabase(url), tmp_path / "backup")
        assert postgres.password not in str(refused.value)
    assert not (tmp_path / "backup").exists()


def test_no_password_is_shown_to_others_while_a_backup_runs(postgres, tmp_path, monkeypatch):
    """A pg_dump of ours notes how it was started."""
    folder = tmp_path / "bin"
    folder.mkdir()
    noting = folder / "pg_dump"
    noting.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/seen\necho "$PGPASSWORD" > {tmp_path}/password\nexit 1\n'
    )
    noting.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert shutil.which("pg_dump") == str(noting)
    with postgres.database() as url, pytest.raises(Unusable, match="pg_dump failed: status 1"):
        upkeep.backup(RemoteDatabase(url), tmp_path / "backup")
    assert postgres.password not in (tmp_path / "seen").read_text()
    assert (tmp_path / "password").read_text().strip() == postgres.password


def test_an_organisation_is_added_beside_a_running_server_and_sees_its_own_alone(origin):
    server, place = origin
    first = MetricsClient(server.url, server.key)
    first.open("theirs")
    made, key = upkeep.add_organisation(place, "Räuber & Söhne")
    assert [one.name for one in upkeep.organisations(place)] == ["local", made.name]
    other = MetricsClient(server.url, key)
    status = other.http.get("/api/v1/auth/status", headers=other.authorization).json()["data"]
    assert status["organization"] == {"id": made.uid, "name": made.name}
    assert status["auth"]["role"] == "owner"
    assert other.data("foldertree.read") == {"folders": [], "experiments": []}
    experiment = other.open("theirs")
    experiment.send(experiment.metric("m", 1.0, 0))
    assert len(first.data("foldertree.read")["experiments"]) == 1
    for name, says in (("local", "named 'local' already"), ("", "got ''"), ("a\nb", "printable")):
        with pytest.raises(Unusable, match=says):
            upkeep.add_organisation(place, name)
    for client in (first, other):
        client.close()


def test_an_organisation_is_not_added_where_there_are_no_tables(empty):
    _, place = empty
    with pytest.raises(Unusable, match="start the server there first"):
        upkeep.add_organisation(place, "one")


def test_room_of_what_was_deleted_is_given_back(origin):
    server, place = origin
    client = MetricsClient(server.url, server.key)
    kept, gone = client.open("kept"), client.open("gone")
    for experiment, count in ((kept, 5), (gone, 500)):
        experiment.send(*[experiment.metric("m", 0.5 * step, step) for step in range(100)])
        experiment.send(*[experiment.event("annotate", annotation="x" * 16_000) for _ in range(count)])
    points, key = client.points(kept.id), client.key
    client.http.delete(f"/api/v1/experiments/{gone.id}", headers=client.authorization).raise_for_status()
    client.close()
    if not isinstance(place, DataDir):
        with pytest.raises(Unusable, match="PostgreSQL uses the room"):
            upkeep.compact(place)
        return
    with pytest.raises(Unusable, match="in use by another server"):
        upkeep.compact(place)
    wait_until(lambda: not left_of(place), within_s=60)
    server.kill()  # with pages beside the file that are not in it yet
    before, after = upkeep.compact(place)
    assert after == place.database.stat().st_size < before - 4_000_000
    assert place.database.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in place.path.iterdir()) == ["key", "lock", "metrics.sqlite3"]
    server.start()
    again = MetricsClient(server.url, key)
    assert again.points(kept.id) == points
    assert len(again.data("query.annotations", experimentId=kept.id)["annotations"]) == 5
    again.close()


def left_of(place):
    """How many experiments are taken away and not deleted yet."""
    with contextlib.closing(sqlite3.connect(place.database)) as connection:
        return connection.execute("SELECT count(*) FROM experiments WHERE deleted_ms IS NOT NULL").fetchone()[
            0
        ]
