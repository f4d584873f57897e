"""Metrics and exports read from the command line are what the server holds, to the last bit."""

import csv
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

VALUES = [0.1, -0.0, 5e-324, 1e308, 1 / 3, -1e-7, 12345678901234567.0]


@pytest.fixture
def measured(client, name):
    """An experiment with two partitions of one metric and another metric."""
    experiment = client.open(name)
    events = [
        experiment.metric("loss", value, step, timestampMs=1_000 + step, meta={"split": split})
        for split in ("train", "valid")
        for step, value in enumerate(VALUES)
    ]
    experiment.send(*events, experiment.metric("accuracy", 0.5, 3, timestampMs=9_000, meta={}))
    return experiment


def test_metrics_are_listed_with_their_metadata(cli, measured, name):
    assert cli.ok("metric", "list", name, "--json").json == [
        {"name": "accuracy", "metadata": {}},
        {"name": "loss", "metadata": {"split": ["train", "valid"]}},
    ]
    assert ["loss", "split=train,valid"] in cli.ok("metric", "list", measured.id).rows


def test_points_read_back_to_the_same_value(cli, measured, name):
    said = cli.ok("metric", "get", name, "loss", "--where", "split=valid", "--json")
    points = [json.loads(line) for line in said.out.splitlines()]
    assert [(point["step"], point["timestamp_ms"]) for point in points] == [
        (step, 1_000 + step) for step in range(len(VALUES))
    ]
    assert [point["value"].hex() for point in points] == [value.hex() for value in VALUES]
    assert {json.dumps(point["metadata"]) for point in points} == {'{"split": "valid"}'}
    rows = cli.ok("metric", "get", name, "loss", "--where", "split").rows
    assert len(rows) == 2 * len(VALUES)
    assert [float(row[2]).hex() for row in rows[: len(VALUES)]] == [value.hex() for value in VALUES]


def test_a_metric_that_is_not_there_is_said(cli, measured, name):
    refused = cli("metric", "get", name, "los")
    assert (refused.code, refused.out) == (1, "")
    assert "has no points of 'los' there: syvain-metrics metric list" in refused.line


def test_where_attempts_repeated_a_step_the_newest_copy_alone_is_to_be_had(cli, client, name, tmp_path):
    first = client.open(name)
    first.send(first.event("start"), *[first.metric("loss", step, step) for step in (0, 1, 2)])
    second = client.open(name)
    second.send(second.event("start"), *[second.metric("loss", step + 0.5, step) for step in (1, 2, 3)])
    every = [row[2] for row in cli.ok("metric", "get", name, "loss").rows]
    assert every == ["0.0", "1.0", "1.5", "2.0", "2.5", "3.5"]
    newest = [row[2] for row in cli.ok("metric", "get", name, "loss", "--newest").rows]
    assert newest == ["0.0", "1.5", "2.5", "3.5"]
    out = tmp_path / "x.csv"
    cli.ok("export", name, "--newest", "-o", out)
    assert [row["value"] for row in read(out)] == [0.0, 1.5, 2.5, 3.5]


def read(path):
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    if path.suffix == ".csv":
        rows = list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))
        return [
            {
                **row,
                "step": int(row["step"]),
                "timestamp_ms": int(row["timestamp_ms"]),
                "value": float(row["value"]),
            }
            for row in rows
        ]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**line, "metadata": json.dumps(line["metadata"], separators=(",", ":"))} for line in lines]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_an_export_holds_every_point(cli, measured, name, tmp_path, kind):
    file = tmp_path / f"points.{kind}"
    said = cli.ok("export", name, "--output", file)
    assert said.out == ""
    assert said.line == f"15 points of 1 experiment in {file}"
    rows = read(file)
    assert {(row["experiment_id"], row["experiment_slug"], row["folder"]) for row in rows} == {
        (measured.id, name, "/")
    }
    found = {
        (row["metric_name"], row["metadata"], row["step"], row["timestamp_ms"], row["value"].hex())
        for row in rows
    }
    expected = {
        ("loss", f'{{"split":"{split}"}}', step, 1_000 + step, value.hex())
        for split in ("train", "valid")
        for step, value in enumerate(VALUES)
    }
    assert found == expected | {("accuracy", "{}", 3, 9_000, (0.5).hex())}
    assert len(rows) == len(found)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_an_export_takes_folders_globs_names_and_metadata(cli, client, name, tmp_path):
    folder = cli.ok("folder", "create", "-p", f"/{name}/inner").out.strip()
    for index in range(3):
        experiment = client.open(f"{name}-{index}")
        experiment.send(experiment.metric("a", index, 0, meta={"k": "1"}), experiment.metric("b", index, 0))
        if index:
            cli.ok("experiment", "move", f"{name}-{index}", folder)
    out = tmp_path / "x.csv"

    def exported(*arguments):
        cli.ok("export", *arguments, "-o", out)
        return sorted((row["experiment_slug"], row["folder"], row["metric_name"]) for row in read(out))

    inner = f"/{name}/inner"
    assert exported("--folder", f"/{name}", "--metric", "a") == [
        (f"{name}-1", inner, "a"),
        (f"{name}-2", inner, "a"),
    ]
    assert exported("--folder", folder, "--where", "k=1") == exported("--folder", f"/{name}", "--metric", "a")
    assert exported(f"{name}-[02]", "--metric", "b") == [(f"{name}-0", "/", "b"), (f"{name}-2", inner, "b")]
    assert exported(f"{name}-0", f"{name}-*", "--metric", "a", "--metric", "nothing")[0][0] == f"{name}-0"
    assert len(exported(f"{name}-*")) == 6


def test_a_slug_that_looks_like_a_glob_is_itself_first(cli, client, name, tmp_path):
    for slug in (f"{name}*", f"{name}-other"):
        experiment = client.open(slug)
        experiment.send(experiment.metric("a", 1, 0))
    out = tmp_path / "x.csv"
    cli.ok("export", f"{name}*", "-o", out)
    assert [row["experiment_slug"] for row in read(out)] == [f"{name}*"]


def test_an_export_that_fails_leaves_the_older_file(cli, measured, name, tmp_path):
    out = tmp_path / "x.parquet"
    out.write_text("older")
    cli.env["O41_METRICS_HOST"] = "http://127.0.0.1:1"
    assert cli("export", name, "-o", out).code == 75
    assert out.read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_closed_pipe_is_no_error(cli, client, name):
    experiment = client.open(name)
    for first in range(0, 20_000, 1_000):
        experiment.send(*[experiment.metric("a", step, step) for step in range(first, first + 1_000)])
    for command in (["export", name, "-o", "-", "--format", "csv"], ["metric", "get", name, "a"]):
        process = cli.process(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout.readline()
        process.stdout.close()
        with process.stderr:
            assert (process.wait(60), process.stderr.read()) == (0, b"")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="writes to /dev/full")
@pytest.mark.parametrize(
    "command", [["auth", "status"], ["experiment", "list"], ["folder", "list", "--json"]]
)
def test_an_output_that_is_full_is_one_line_and_exit_75(cli, client, name, command):
    client.open(name)
    with Path("/dev/full").open("wb") as full:
        process = cli.process(*command, stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert err == b"syvain-metrics: standard output cannot be used: No space left on device\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_export_holds_no_series_in_memory(cli, client, name, tmp_path):
    """Ten times the points: the process grows by less than the points themselves take as text."""

    def peak_kib(slug):
        process = cli.process("export", slug, "-o", tmp_path / f"{slug}.jsonl", stderr=subprocess.PIPE)
        with process.stderr:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0, process.stderr.read()
        return usage.ru_maxrss

    draw = random.Random(1)
    for slug, num_points in ((f"{name}-s", 10_000), (f"{name}-l", 100_000)):
        experiment = client.open(slug)
        for first in range(0, num_points, 1_000):
            experiment.send(
                *[experiment.metric("a", draw.random(), step) for step in range(first, first + 1_000)]
            )
    small, large = peak_kib(f"{name}-s"), peak_kib(f"{name}-l")
    size_kib = (tmp_path / f"{name}-l.jsonl").stat().st_size >> 10
    assert size_kib > 15_000
    assert large - small < 6_000
