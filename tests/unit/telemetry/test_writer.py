"""Telemetry(): one write a line, from any number of processes, and never the end of what it reports on."""

from __future__ import annotations

import json
import math
import multiprocessing
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from runtime.telemetry import Telemetry


def lines(path):
    return path.read_text().splitlines()


def test_a_point_is_a_line_at_once_in_the_file_that_div_run_names(tmp_path, monkeypatch):
    path = tmp_path / "t"
    monkeypatch.setenv("DIVERGENT_TELEMETRY_PATH", str(path))
    with Telemetry() as telemetry:
        telemetry.append({"step": 1, "loss": 0.5})
        assert lines(path) == ['{"step":1,"loss":0.5}']
        telemetry.append({"step": 2})
    telemetry.append({"step": 3})
    telemetry.close()
    assert len(lines(path)) == 3


def test_a_path_of_ones_own_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("DIVERGENT_TELEMETRY_PATH", str(tmp_path / "no"))
    with Telemetry(tmp_path / "t") as telemetry:
        telemetry.append({"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_what_writes_from_other_libraries_loads_none_unless_it_is_used():
    told = "import sys, runtime.telemetry; print({'transformers', 'lightning', 'torch'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, check=True).stdout == b"set()\n"


def test_without_a_path_it_is_off_and_says_what_to_do(monkeypatch, caplog):
    monkeypatch.delenv("DIVERGENT_TELEMETRY_PATH", raising=False)
    with Telemetry() as telemetry:
        telemetry.append({"a": 1})
    (record,) = caplog.records
    assert record.getMessage() == (
        "telemetry is off, as DIVERGENT_TELEMETRY_PATH is not set: run this under `div run`,"
        " or set it to a file of yours"
    )


def test_scalars_of_numpy_and_torch_are_numbers_and_a_slash_is_a_dot(tmp_path):
    import torch

    data: dict[Any, Any] = {
        "a": np.float32(0.5),
        "b": torch.tensor(2),
        "train/loss": {"x/y": np.int64(3)},
        1: 4,
    }
    with Telemetry(tmp_path / "t") as telemetry:
        telemetry.append(data | {"z": torch.ones(2), "y": object(), "nan": math.nan})
    (line,) = lines(tmp_path / "t")
    expected = {"a": 0.5, "b": 2, "train.loss": {"x.y": 3}, "1": 4, "z": None, "y": None}
    assert line == json.dumps({**expected, "nan": math.nan}, separators=(",", ":"))


def test_what_is_no_mapping_is_refused(tmp_path):
    with pytest.raises(TypeError, match="takes a mapping of keys to numbers, got 3"):
        Telemetry(tmp_path / "t").append(3)  # type: ignore[arg-type]


def test_what_cannot_be_written_is_said_once_and_fails_nothing(tmp_path, caplog):
    with Telemetry(tmp_path / "no" / "t") as telemetry:
        telemetry.append({"a": 1})
        telemetry.append({"a": 2})
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "telemetry is lost, and this is said once"
    ]


def test_a_full_disk_makes_no_line_part_of_another(tmp_path, monkeypatch):
    import os

    real, room = os.write, [5]

    def write(fd, data):
        if not room[0]:
            raise OSError(28, "No space left on device")
        data = bytes(data)[: room[0]]
        room[0] -= len(data)
        return real(fd, data)

    with Telemetry(tmp_path / "t") as telemetry, monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        telemetry.append({"a": 1})
        room[0] = 1_000
        telemetry.append({"a": 2})
    assert lines(tmp_path / "t") == ['{"a":', '{"a":2}']


def test_a_line_left_unfinished_by_a_killed_process_is_ended_first(tmp_path):
    (tmp_path / "t").write_bytes(b'{"step":1')
    with Telemetry(tmp_path / "t") as telemetry:
        telemetry.append({"step": 2})
    assert lines(tmp_path / "t") == ['{"step":1', '{"step":2}']


def append_many(path, number):
    with Telemetry(path) as telemetry:
        for step in range(500):
            telemetry.append({"process": number, "step": step, "fill": "x" * 500})


def test_several_processes_write_to_one_file_and_no_line_is_torn(tmp_path):
    path = tmp_path / "t"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=append_many, args=(path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    points = [json.loads(line) for line in lines(path)]
    for number in range(3):
        assert [point["step"] for point in points if point["process"] == number] == list(range(500))
