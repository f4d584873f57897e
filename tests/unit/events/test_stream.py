import errno
import logging
import math
import threading
import time
from types import SimpleNamespace

import pytest

from runtime.events.kinds import Annotation, Done, Metric, Open, Point
from runtime.events.stream import _LULLS_APART_S, EventStream
from runtime.events.targets import Backlog, MemoryTarget, Segment
from tests.support.strict_json import strict_lines

OPEN = Open(1, "my-run", "my-run: 8 steps of lm.py", {"entry": "lm.py"})


class FailingTarget(MemoryTarget):
    """A target whose calls fail as scripted: {call: error}."""

    def __init__(self, name, **errors):
        super().__init__(name)
        self.errors = errors

    def write(self, events, lines):
        if "write" in self.errors and self.events:
            raise self.errors["write"]
        super().write(events, lines)

    def sync(self):
        super().sync()
        if "sync" in self.errors:
            raise self.errors["sync"]

    def close(self, timeout_s):
        super().close(timeout_s)
        if "close" in self.errors:
            raise self.errors["close"]


class SpoolingTarget(MemoryTarget):
    """A target that delivers nothing and keeps its backlog in memory."""

    def __init__(self):
        super().__init__("spooling")
        self.inherited = []
        self.asked = []
        self.url = "http://127.0.0.1/dashboard/experiments/1"

    def position(self):
        return len(self.events)

    def backlog(self, position):
        self.asked.append(position)
        return Backlog(Segment("new", b"".join(self.lines[:position])), ("new",))

    def inherit(self, segments):
        self.inherited += segments

    @property
    def unsent(self):
        return len(self.events)


@pytest.fixture
def clock():
    times = iter(range(100, 1_000_000))
    return lambda: next(times)


def test_the_stream_says_everything_in_the_order_of_the_calls(clock):
    target = MemoryTarget()
    stream = EventStream([target], clock_ms=clock)
    stream.open(OPEN)
    stream.annotate(0, "stage a -> b", {"from": "a", "to": "b"})
    stream.metrics(0, lambda: [("train/loss", 2.5, {"split": "train"}), ("train/lr", 0.1, {})])
    stream.done("my-run")
    summary = stream.close(timeout_s=60)
    assert target.events == [
        OPEN,
        Annotation(100, 0, "stage a -> b", {"from": "a", "to": "b"}),
        Metric(101, 0, "train/loss", 2.5, {"split": "train"}),
        Metric(101, 0, "train/lr", 0.1, {}),
        Done(102, "my-run"),
    ]
    assert target.lines == [event.encode() for event in target.events]
    assert target.num_writes == 4, "what is handed over at once is written at once"
    assert target.closed
    assert (summary.dropped, summary.num_dropped, summary.unsent, summary.url) == ({}, 0, 0, None)
    assert stream.close(timeout_s=60) is summary


def test_a_failed_run_says_so_and_then_done(clock):
    target = MemoryTarget()
    stream = EventStream([target], clock_ms=clock)
    stream.open(OPEN)
    stream.fail(3, "ValueError: boom")
    stream.close(timeout_s=60)
    assert target.events[1:] == [
        Annotation(100, 3, "failed: ValueError: boom", {"error": "ValueError: boom"}),
        Done(100, "my-run", error="ValueError: boom"),
    ]


def test_nothing_follows_done_but_in_the_log(caplog):
    """A failed run gives up a save after a while; its publishing, still on its way, succeeds afterwards."""
    caplog.set_level("INFO")
    target = MemoryTarget()
    stream = EventStream([target])
    stream.open(OPEN)
    stream.fail(3, "ValueError: boom")
    stream.annotate(2, "checkpoint /c/step-00000002", {"checkpoint": "/c/step-00000002", "seconds": 31.5})
    stream.close(timeout_s=5)
    assert isinstance(target.events[-1], Done)
    assert "after the end of the stream: Annotation(" in caplog.text
    assert "checkpoint /c/step-00000002" in caplog.text


def test_handing_over_neither_waits_for_values_nor_for_targets():
    release = threading.Event()
    target = MemoryTarget()
    stream = EventStream([target])
    stream.open(OPEN)

    def resolve():
        assert release.wait(60)
        yield ("loss", 1.0, {})

    stream.metrics(0, resolve)
    stream.annotate(0, "after", {})
    assert [event for event in target.events if event is not OPEN] == []
    release.set()
    stream.close(timeout_s=60)
    assert [type(event) for event in target.events] == [Open, Metric, Annotation]


def test_catching_up_ends_when_all_is_written_or_its_time_is_over():
    release = threading.Event()
    target = MemoryTarget()
    stream = EventStream([target])
    stream.metrics(0, lambda: [("loss", float(release.wait(60)), {})])
    stream.catch_up(timeout_s=0.01)
    assert target.events == []
    release.set()
    stream.catch_up(timeout_s=60)
    assert len(target.events) == 1
    stream.close(timeout_s=60)


def test_values_are_resolved_on_the_streams_thread():
    threads = []
    stream = EventStream([MemoryTarget()])

    def resolve():
        threads.append(threading.current_thread().name)
        return []

    stream.metrics(0, resolve)
    stream.close(timeout_s=60)
    assert threads == ["events"]


@pytest.mark.parametrize("then", ["lull", "annotate", "close"])
def test_metrics_wait_for_a_lull_or_for_whatever_else_is_said(monkeypatch, then):
    monkeypatch.setattr("runtime.events.stream._PATIENCE_S", 3_600.0)
    resolved = threading.Event()
    stream = EventStream([MemoryTarget()])

    def resolve():
        resolved.set()
        return []

    stream.metrics(0, resolve)
    assert not resolved.is_set()  # the thread was not woken
    {"lull": stream.lull, "annotate": lambda: stream.annotate(0, "news", {}), "close": lambda: None}[then]()
    assert then == "close" or resolved.wait(60)
    stream.close(timeout_s=60)
    assert resolved.is_set()


def test_lulls_close_together_wake_the_thread_once_and_a_later_one_again(monkeypatch):
    monkeypatch.setattr("runtime.events.stream._PATIENCE_S", 3_600.0)
    now = [100.0]
    stream = EventStream([MemoryTarget()])
    clock = SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns)
    monkeypatch.setattr("runtime.events.stream.time", clock)
    woken_at, wake = [], stream._due.set

    def noted() -> None:
        woken_at.append(now[0])
        wake()

    monkeypatch.setattr(stream._due, "set", noted)
    release = threading.Event()

    def resolve() -> list[Point]:
        release.wait(60)  # so that the queue is not empty at any lull
        return []

    for step, at in enumerate((100.0, 100.0 + _LULLS_APART_S / 2, 100.0 + 2 * _LULLS_APART_S)):
        now[0] = at
        stream.metrics(step, resolve)
        stream.lull()
    assert woken_at == [100.0, 100.0 + 2 * _LULLS_APART_S]
    release.set()
    monkeypatch.undo()
    stream.close(timeout_s=60)


def test_metrics_are_written_soon_although_no_lull_comes():
    resolved = threading.Event()
    stream = EventStream([MemoryTarget()])

    def resolve():
        resolved.set()
        return []

    stream.metrics(0, resolve)
    assert resolved.wait(60)
    stream.close(timeout_s=60)


def test_an_error_in_resolve_keeps_the_values_before_it_and_is_counted(caplog):
    target = MemoryTarget()
    stream = EventStream([target])

    def resolve():
        yield ("loss", 1.0, {})
        yield ("loss", math.nan, {})
        raise RuntimeError("the device is gone")

    stream.metrics(7, resolve)
    stream.metrics(8, lambda: [("loss", 2.0, {})])
    summary = stream.close(timeout_s=60)
    assert [line["value"] for line in strict_lines(b"".join(target.lines))] == [1.0, None, 2.0]
    assert summary.dropped == {"stream": {"failed": 1}}
    assert "the metrics of step 7 could not be computed" in caplog.text
    assert "the device is gone" in caplog.text


def test_an_event_that_cannot_be_encoded_costs_only_itself(caplog):
    target = MemoryTarget()
    stream = EventStream([target])
    stream.metrics(1, lambda: [("a", 1.0, {}), ("b", 2.0, {"k": "\ud800"}), ("c", 3.0, {})])
    summary = stream.close(timeout_s=60)
    assert [line["name"] for line in strict_lines(b"".join(target.lines))] == ["a", "c"]
    assert summary.num_dropped == 1
    assert "an event could not be encoded" in caplog.text


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EPIPE, errno.EIO])
def test_a_target_that_can_no_longer_be_written_is_dropped_said_and_counted(call, code, caplog):
    bad, good = FailingTarget("bad", **{call: OSError(code, "why")}), MemoryTarget("good")
    stream = EventStream([bad, good])
    stream.open(OPEN)
    stream.sync(stream.mark())
    for step in range(3):
        stream.metrics(step, lambda: [("a", 1.0, {}), ("b", 2.0, {})])
    stream.done("my-run")
    summary = stream.close(timeout_s=60)
    assert bad.events == [OPEN]
    assert len(good.events) == 8
    assert good.closed
    assert not bad.closed
    assert summary.dropped == {"bad": {"not written": 7}}
    assert caplog.text.count("bad can no longer be written") == 1
    assert "events dropped by bad: 7 not written" in caplog.text


def test_a_target_with_a_mistake_of_its_own_loses_only_those_events(caplog):
    bad = FailingTarget("bad", write=KeyError("mistake"), close=KeyError("mistake"))
    stream = EventStream([bad])
    stream.open(OPEN)
    stream.metrics(0, lambda: [("a", 1.0, {})])
    assert stream.close(timeout_s=60).dropped == {"bad": {"failed": 1}}
    assert "bad could not take 1 events" in caplog.text
    assert "bad could not be closed" in caplog.text


def test_done_is_durable_before_the_stream_closes():
    target = MemoryTarget()
    stream = EventStream([target])
    stream.open(OPEN)
    stream.done("my-run")
    stream.close(timeout_s=60)
    assert target.num_syncs == 1


def test_sync_returns_when_everything_before_it_is_written_and_durable():
    target = MemoryTarget()
    stream = EventStream([target])
    stream.open(OPEN)
    mark = stream.mark()
    stream.sync(mark)
    assert (target.events, target.num_syncs) == ([OPEN], 1)
    stream.close(timeout_s=60)
    stream.sync(mark)
    assert target.num_syncs == 1, "after the end there is nothing left to do"


def test_a_backlog_ends_at_its_mark_whatever_follows():
    target = SpoolingTarget()
    stream = EventStream([MemoryTarget(), target])
    stream.inherit([Segment("old", b"x")])
    stream.open(OPEN)
    stream.metrics(0, lambda: [("a", 1.0, {})] * 3)
    first = stream.mark()
    stream.metrics(1, lambda: [("a", 1.0, {})] * 3)
    second = stream.mark()
    stream.done("my-run")
    backlog = stream.backlog(first)
    assert backlog.new is not None
    assert len(strict_lines(backlog.new.data)) == 4
    assert backlog.names == ("new",)
    assert stream.backlog(first) == backlog, "a save that is tried again asks again"
    stream.backlog(second)
    assert target.asked == [4, 4, 7]
    assert target.inherited == [Segment("old", b"x")]
    summary = stream.close(timeout_s=60)
    assert (summary.unsent, summary.url) == (8, target.url)


def test_what_metrics_never_got_travels_on_through_an_attempt_without_metrics():
    stream = EventStream([MemoryTarget("memory")])
    assert stream.backlog(stream.mark()) == Backlog(None, ())
    stream.inherit([Segment("old", b"x"), Segment("older", b"y")])
    stream.open(OPEN)
    assert stream.backlog(stream.mark()) == Backlog(None, ("old", "older"))
    stream.close(timeout_s=60)


def test_the_whole_of_an_annotation_that_was_cut_stands_in_the_log(caplog):
    caplog.set_level(logging.INFO)
    target = MemoryTarget()
    stream = EventStream([target])
    whole = "\n".join(f"line {n}" for n in range(10_000))
    stream.annotate(0, whole, {"changed": ["a", "b"]})
    stream.annotate(0, "short", {"seconds": math.inf})
    stream.close(timeout_s=60)
    assert strict_lines(target.lines[0])[0]["annotation"].endswith("more lines")
    assert whole in caplog.text
    assert "short" not in caplog.text


def test_a_stream_that_hangs_ends_in_time_and_drops_metrics_beyond_a_bound(monkeypatch):
    monkeypatch.setattr("runtime.events.stream._MAX_BEHIND", 10)
    release = threading.Event()
    stream = EventStream([MemoryTarget()])
    stream.metrics(0, lambda: [("held up", float(release.wait(60)), {})])
    for step in range(100):
        stream.metrics(step, list)
    summary = stream.close(timeout_s=0.01)
    release.set()
    assert 85 <= summary.dropped["stream"]["behind"] <= 90


def test_hand_overs_of_many_threads_all_arrive():
    target = MemoryTarget()
    stream = EventStream([target])

    def say():
        for _ in range(500):
            stream.annotate(0, "x", {})

    threads = [threading.Thread(target=say) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stream.mark() == 2001
    stream.close(timeout_s=60)
    assert len(target.events) == 2000
