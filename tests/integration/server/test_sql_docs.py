"""The programs and the SQL of docs/metrics.md, run as they stand against the real server."""

import shutil
import subprocess
import sys

import pytest

from tests.support.docs import ROOT, blocks
from tests.support.metrics_server import MetricsClient, running_server

PAGE = ROOT / "docs" / "metrics.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("docs") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    client = MetricsClient(server.url, server.key)
    yield client
    client.close()


@pytest.fixture(scope="module")
def sweep(client):
    """Two experiments in the folder of the docs, and one elsewhere that no query may find."""
    mamba = client.data("folder.create", name="mamba", parentFolderId=None)["folderId"]
    folder = client.data("folder.create", name="lr-sweep", parentFolderId=mamba)["folderId"]
    for slug, rate, place in (("low", 0.001, folder), ("high", 0.1, folder), ("elsewhere", 1.0, None)):
        experiment = client.open(slug, meta={"lr": rate})
        if place:
            client.data(
                "folderexperiment.move", experimentId=experiment.id, fromFolderId=None, toFolderId=place
            )
        experiment.send(
            *[
                experiment.metric("loss", rate + 1 / (step + 1), step, meta={"split": "train"})
                for step in range(100)
            ],
            experiment.event("annotate", annotation="warm", meta={"step": 9}),
        )


def run_as_a_user(server, tmp_path, program, **environment):
    """Run a program of the docs where the server's first start has saved its key."""
    shutil.copytree(server._config, tmp_path / "config")
    command = [sys.executable, "-W", "error", "-c", program.replace("http://127.0.0.1:8041", server.url)]
    variables = {
        "PATH": "",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        **environment,
    }
    return subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_program_that_reports_does(server, client, tmp_path):
    (program,) = [block.text for block in blocks(PAGE, "python") if "Collector" in block.text]
    ran = run_as_a_user(server, tmp_path, program, SYVAIN_METRICS_API_KEY=server.key)
    assert ran.returncode == 0, ran.stderr
    (found,) = [one for one in client.data("foldertree.read")["experiments"] if one["slug"] == "warm-up-3"]
    assert client.record(found["experimentId"])["status"] == "done"
    assert len(client.points(found["experimentId"])["loss", (("split", "train"),)]) == 1000


def test_the_queries_find_what_is_in_the_folder(server, sweep, tmp_path):
    (attach,) = [block.text for block in blocks(PAGE, "python") if "ATTACH" in block.text]
    queries = [block.text for block in blocks(PAGE, "sql")]
    program = attach + "".join(f"\nprint(connection.execute({query!r}).fetchall())" for query in queries)
    ran = run_as_a_user(server, tmp_path, program)
    assert ran.returncode == 0, ran.stderr
    *found, refreshed = ran.stdout.splitlines()
    assert found == [
        str([("low", "0.001", 99, 0.001 + 0.01), ("high", "0.1", 99, 0.1 + 0.01)]),
        str([("high", "warm", 9, 0.1 + 0.1), ("low", "warm", 9, 0.001 + 0.1)]),
    ]
    assert refreshed.startswith("[(")
