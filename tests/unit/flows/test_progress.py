"""What a run's events say while they are written, and how it is shown."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flows.ledger import Ledger
from flows.picture import data_uri, loss_picture
from flows.progress import Curve, Progress, WholeLines
from flows.report import LINES_A_TICK, Report, artifact_key, summary

OPEN = {"ts_ms": 1, "kind": "open", "slug": "a", "metadata": {"run": {"steps": 8}}}


def metric(step: int, value: float | None, name: str = "train/loss") -> dict[str, Any]:
    return {"ts_ms": 10 + step, "step": step, "kind": "metric", "name": name, "value": value, "metadata": {}}


def note(step: int, text: str, **metadata) -> dict[str, Any]:
    return {"ts_ms": 10 + step, "step": step, "kind": "annotation", "annotation": text, "metadata": metadata}


def after(*events: dict[str, Any]) -> Progress:
    progress = Progress()
    progress.read(json.dumps(event).encode() for event in events)
    return progress


def test_steps_losses_rate_and_checkpoints_are_read():
    progress = after(
        OPEN,
        metric(0, 3.0),
        metric(0, 1200.5, "rate/tokens"),
        metric(4, 2.0, "eval/loss"),
        note(4, "checkpoint /c/step-00000004", checkpoint="/c/step-00000004", seconds=0.5),
        {"ts_ms": 99, "kind": "done", "slug": "a"},
    )
    assert (progress.total, progress.step, progress.last_event_ms, progress.done) == (8, 4, 99, True)
    assert progress.rate == ("tokens", 1200.5)
    assert progress.train_loss.points == [(0, 3.0)]
    assert progress.eval_loss.points == [(4, 2.0)]
    assert [(c.step, c.path, c.seconds) for c in progress.checkpoints] == [(4, "/c/step-00000004", 0.5)]


def test_a_resumes_points_replace_those_that_it_repeats():
    progress = after(OPEN, *[metric(step, 1.0) for step in range(6)], metric(4, 1.0, "eval/loss"), OPEN)
    progress.read(
        json.dumps(event).encode() for event in [note(4, "resumed from /c"), metric(4, 2.0), metric(5, 2.0)]
    )
    assert progress.train_loss.points == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0)]
    assert progress.eval_loss.points == [(4, 1.0)]
    assert progress.step == 5


def test_a_failure_is_the_newest_attempts():
    assert after(OPEN, note(3, "failed: ValueError: x", error="ValueError: x")).failed == (3, "ValueError: x")
    assert after(OPEN, note(3, "failed: ValueError: x", error="ValueError: x"), OPEN).failed is None


def test_a_value_that_is_no_number_is_no_point():
    assert after(OPEN, metric(0, None)).train_loss.points == []


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"\xff", b'{"kind":7}', b'{"no":"kind"}', b'{"kind":"later"}']
)
def test_a_line_that_is_no_event_is_passed_over(line):
    progress = Progress()
    progress.read([line, json.dumps(metric(1, 1.0)).encode()])
    assert progress.step == 1


def test_a_curve_stays_small_and_keeps_its_order():
    curve = Curve()
    for step in range(100_000):
        curve.add(step, float(step))
    assert 1_000 < len(curve.points) <= 4_000
    assert curve.points == sorted(curve.points)


def test_a_tail_yields_each_whole_line_once_and_waits_for_a_torn_one(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = WholeLines(path)
    assert list(tail.lines()) == []
    path.write_bytes(b"one\ntw")
    assert list(tail.lines()) == [b"one"]
    with path.open("ab") as file:
        file.write(b"o\n\nthree\n")
    assert list(tail.lines()) == [b"two", b"", b"three"]
    assert list(tail.lines()) == []


def test_a_torn_line_that_a_resume_cuts_off_is_never_seen(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"one\nhalf a li")
    tail = WholeLines(path)
    assert list(tail.lines()) == [b"one"]
    path.write_bytes(b"one\ntwo\n")
    assert list(tail.lines()) == [b"two"]


def test_the_picture_is_well_formed_whatever_the_slug_and_shows_a_spike_among_many_points():
    points = [(step, 1.0) for step in range(50_000)]
    points[31_337] = (31_337, 77.0)
    svg = loss_picture('<a> & "b"', [("train/loss", "#2563eb", points), ("eval/loss", "#ea580c", [])])
    (drawn,) = ET.fromstring(svg).iterfind(".//{*}polyline")
    heights = [float(pair.split(",")[1]) for pair in drawn.attrib["points"].split()]
    assert len(heights) < 1_000
    assert min(heights) < 60 < max(heights)
    assert base64.b64decode(data_uri(svg).partition(",")[2]).decode() == svg


@pytest.mark.parametrize("points", [[], [(3, 0.0)], [(0, 1.0), (1, 1.0)], [(0, -5.0), (9, 1e30)]])
def test_the_picture_is_well_formed_for_few_and_odd_points(points):
    ET.fromstring(loss_picture("a", [("train/loss", "#000", points)]))


@pytest.fixture
def report(tmp_path) -> Report:
    return Report(slug="a", flow_run_id="f", events=tmp_path / "events.jsonl", log=logging.getLogger("run"))


def test_a_trainers_log_is_shown_from_where_its_attempt_begins(report, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    log = tmp_path / "log"
    log.write_text("of an older attempt\n")
    report.begin(log)
    with log.open("a") as file:
        file.write("metrics at http://127.0.0.1:1/dashboard/experiments/ab-1\nlast words\n")
    assert report.last_line() == "last words"
    assert report.page == "http://127.0.0.1:1/dashboard/experiments/ab-1"
    assert [r.message for r in caplog.records][-1] == "last words"
    assert "older attempt" not in caplog.text


def test_a_chatty_trainer_does_not_flood_prefect(report, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    log = tmp_path / "log"
    report.begin(log)
    log.write_text("\n".join(["x" * 5_000] * (LINES_A_TICK + 7)) + "\n")
    report.read()
    assert len(caplog.records) == LINES_A_TICK + 1
    assert caplog.records[-1].message == "... 7 more lines in the attempt's log"
    assert max(len(record.message) for record in caplog.records) == 2_000


def test_a_failure_of_an_earlier_attempt_is_not_the_next_ones(report, tmp_path):
    (tmp_path / "events.jsonl").write_text(json.dumps(note(3, "failed: x", error="x")) + "\n")
    report.begin(tmp_path / "log")
    report.read()
    assert report.progress.failed is None


def test_the_summary_tells_status_attempts_checkpoints_and_where_to_look(report, tmp_path):
    lines = [OPEN, metric(5, 2.5), note(4, "checkpoint /c/4", checkpoint="/c/4", seconds=0.25)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report.read()
    report.page = "http://m/dashboard/experiments/1"
    report.status = "killed by SIGKILL | resuming"
    ledger = Ledger(slug="a").started(host="h1", recorded=0, start_step=0, at_ms=0)
    ledger = ledger.with_last(replace(ledger.attempts[-1], ended_ms=1, end_step=4, code=-9))
    report.ledger = ledger.started(host="h2", recorded=1, start_step=4, at_ms=1000)
    text = summary(report)
    assert "**killed by SIGKILL \\| resuming** — step 5 of 8, train loss 2.5" in text
    assert "[The experiment's page](http://m/dashboard/experiments/1)" in text
    assert "| 1 | h1 | 1970-01-01 00:00:00 | 0 | 4 | killed by SIGKILL |" in text
    assert "| 2 | h2 | 1970-01-01 00:00:01 | 4 |  | running |" in text
    assert "| 4 | 1970-01-01 00:00:00 | 0.25 | `/c/4` |" in text


def test_a_run_that_tells_no_events_is_at_no_step_and_has_no_picture(report, monkeypatch):
    """Prefect said of a shipped command: done, step 0, 0 %, no loss yet."""
    written: dict[str, str] = {}
    server = SimpleNamespace(put_artifact=lambda _run, *, key, data, **_: written.update({key: data}))
    monkeypatch.setattr("flows.report.connect", lambda **_: contextlib.nullcontext(server))
    report.found_page = lambda: "http://m/dashboard/experiments/1"
    report.publish()
    assert written.keys() == {"a"}
    assert written["a"].startswith(
        "**starting**\n\n[The experiment's page](http://m/dashboard/experiments/1)\n"
    )


@pytest.mark.parametrize(
    ("slug", "key"), [("My Run_1", "my-run-1"), ("a/b", "a-b"), ("ä", "run"), ("--x--", "x")]
)
def test_an_artifact_key_is_one_that_prefect_takes(slug, key):
    assert artifact_key(slug) == key


def test_a_file_that_is_begun_anew_is_read_from_its_start(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"one\ntwo\nthree\n")
    tail = WholeLines(path)
    assert list(tail.lines()) == [b"one", b"two", b"three"]
    path.write_bytes(b"four\n")
    assert list(tail.lines()) == [b"four"]


def test_a_line_that_never_ends_is_read_in_parts(tmp_path):
    """A progress bar ends none of its lines: all of them were read anew every second."""
    path = tmp_path / "log"
    path.write_bytes(b"\r50 %" * 500_000)
    tail = WholeLines(path)
    assert sum(map(len, tail.lines())) + (path.stat().st_size - tail.offset) == path.stat().st_size
    assert path.stat().st_size - tail.offset <= 1 << 20
