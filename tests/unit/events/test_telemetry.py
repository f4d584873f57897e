"""The telemetry target: a run's metrics under keys that the rules of telemetry keep."""

from __future__ import annotations

import json
import math
import os
import tracemalloc

import pytest

from runtime.errors import Rejected
from runtime.events.kinds import Annotation, Metric
from runtime.events.stream import EventStream
from runtime.events.telemetry import TelemetryTarget, key_of
from runtime.telemetry.rules import Rules

TRAIN = {"split": "train", "stage": "easy"}
EVAL = {"split": "eval", "stage": "easy", "pass": "eval"}


def metric(name, value, metadata=TRAIN, step=4):
    return Metric(1, step, name, value, metadata)


def write(path, *hand_overs):
    target = TelemetryTarget(path)
    for events in hand_overs:
        target.write(events, [])
    target.close(0)
    return path.read_text().splitlines()


def test_a_step_is_one_line_and_a_slash_a_dot(tmp_path):
    lines = write(tmp_path / "t", [metric("train/loss", 2.7658), metric("train/lr", 0.001)])
    assert lines == ['{"step":4,"train.loss":2.7658,"train.lr":0.001}']


def test_a_step_and_its_evaluation_are_a_line_each(tmp_path):
    lines = write(tmp_path / "t", [metric("eval/loss", 3.5, EVAL), metric("train/loss", 2.5)])
    assert lines == ['{"step":4,"eval.loss":3.5}', '{"step":4,"train.loss":2.5}']


@pytest.mark.parametrize(
    ("name", "metadata", "key"),
    [
        ("train/loss", TRAIN, "train.loss"),
        ("rate/tokens", TRAIN, "rate.tokens"),
        ("eval/loss", EVAL, "eval.loss"),
        ("eval/loss", {**EVAL, "pass": "held-out"}, "eval.held-out.loss"),
        ("accuracy", TRAIN, "accuracy"),
        ("accuracy", EVAL, "eval.accuracy"),
        ("accuracy", {**EVAL, "pass": "held out"}, "eval.held_out.accuracy"),
        ("accuracy", {**TRAIN, "head": "b c", "layer": "3"}, "accuracy.head.b_c.layer.3"),
        ("loss (mean)//x.", TRAIN, "loss_mean_._.x._"),
    ],
)
def test_keys(name, metadata, key):
    assert key_of(metric(name, 1.0, metadata)) == key
    rules = Rules()
    assert rules.take(b'{"%b": 1.0}' % key.encode()) == {key: 1.0}
    assert not rules.dropped


def test_what_is_no_finite_number_is_not_written(tmp_path):
    lines = write(tmp_path / "t", [metric("a", math.nan), metric("b", 1.0)], [Annotation(1, 4, "hi", {})])
    assert lines == ['{"step":4,"b":1.0}']


def test_metadata_that_changes_at_every_call_does_not_fill_the_memory(tmp_path):
    target = TelemetryTarget(tmp_path / "t")

    def write_some(first, last):
        for begin in range(first, last, 80):
            names = [f"{number:0>60}" for number in range(begin, begin + 80)]
            target.write([metric("a", 1.0, TRAIN | {"n": name}) for name in names], [])

    write_some(0, 8_000)
    tracemalloc.start()
    try:
        write_some(8_000, 12_320)  # 4,320 more: 2 MB, where all are remembered
        grown_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    target.close(0)
    assert grown_bytes < 500_000
    assert (tmp_path / "t").read_text().count('"a.n.') == 12_320


@pytest.mark.parametrize("name", ["n{}", "a-long-name-that-fills-a-line-" + "x" * 60 + "-{}"])
def test_any_number_of_metrics_is_kept_by_the_rules(tmp_path, name):
    events = [metric(name.format(number), float(number)) for number in range(200)]
    rules = Rules()
    found: dict[str, float] = {}
    for line in write(tmp_path / "t", events):
        data = rules.take(line.encode())
        assert data is not None
        assert data.pop("step") == 4
        found |= data
    assert found == {name.format(number): float(number) for number in range(200)}
    assert not rules.dropped


def test_a_line_that_a_killed_process_left_unfinished_is_ended_first(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b'{"step":3,"train')
    assert write(path, [metric("a", 1.0)]) == ['{"step":3,"train', '{"step":4,"a":1.0}']


def test_a_full_disk_costs_the_target_and_not_the_run(tmp_path, caplog):
    target = TelemetryTarget(tmp_path / "gone" / "t")
    stream = EventStream([target])
    stream.metrics(1, lambda: [("train/loss", 1.0, TRAIN)])
    summary = stream.close(timeout_s=60)
    assert summary.dropped == {target.name: {"not written": 1}}
    assert "can no longer be written" in caplog.text


def test_a_pipe_that_nobody_reads_costs_the_target_and_not_the_run(tmp_path):
    os.mkfifo(tmp_path / "t")
    target = TelemetryTarget(tmp_path / "t")
    stream = EventStream([target])
    stream.metrics(1, lambda: [(f"metric/{number}", 1.0, TRAIN) for number in range(5_000)])
    stream.sync(stream.mark())  # as before a checkpoint
    assert stream.close(timeout_s=60).dropped == {target.name: {"not written": 5_000}}


@pytest.mark.parametrize("where", ["no/folder/t", ".", "t" * 300])
def test_a_path_that_can_not_be_written_is_refused_before_the_run(tmp_path, where):
    with pytest.raises(Rejected, match="DIVERGENT_TELEMETRY_PATH"):
        TelemetryTarget(tmp_path / where).check()


def test_a_path_that_can_be_written_is_accepted_and_not_touched(tmp_path):
    TelemetryTarget(tmp_path / "t").check()
    assert not (tmp_path / "t").exists()


def test_lines_are_strict_json(tmp_path):
    (line,) = write(tmp_path / "t", [metric("a", 1e300), metric("b", -0.0)])
    assert json.loads(line) == {"step": 4, "a": 1e300, "b": -0.0}
