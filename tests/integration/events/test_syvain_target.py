"""The whole Metrics target, thread and all, against a server over real HTTP."""

import contextlib
import logging
import math
import threading

import pytest

from runtime.errors import Rejected
from runtime.events.kinds import Open
from runtime.events.stream import EventStream
from runtime.events.syvain.client import MetricsClient
from runtime.events.syvain.sender import Pace
from runtime.events.syvain.settings import MetricsSettings
from runtime.events.syvain.target import SyvainTarget
from runtime.events.targets import MemoryTarget
from tests.support import metrics_stub
from tests.support.metrics_stub import KEY, serve
from tests.support.ports import free_port

OPEN = Open(1_000, "my-run", "my-run: 8 steps of lm.py", {"entry": "lm.py", "knobs": {"clip": "inf"}})
FAST = Pace(linger_s=0.01, heartbeat_s=25, first_delay_s=0.01, longest_delay_s=0.05)
FIRST, SECOND, THIRD = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
def stub():
    with serve() as server:
        yield server


def target(stub, session=FIRST, *, pace=FAST, folder=None, key=KEY, url=None, pack=None):
    settings = MetricsSettings(url or stub.url, key)
    return SyvainTarget(settings, session=session, pace=pace, folder=folder, timeout_s=60, pack=pack)


def test_a_whole_run_arrives_in_order_with_its_own_times(stub):
    times = iter(range(2_000, 3_000))
    stream = EventStream([target(stub)], clock_ms=lambda: next(times))
    stream.open(OPEN)
    stream.annotate(0, "stage a -> b", {"from": "a", "to": "b"})
    stream.metrics(0, lambda: [("train/loss", 2.5, {"split": "train"}), ("train/loss", math.nan, {})])
    stream.metrics(1, lambda: [("train/loss", -0.0, {"split": "train"})])
    stream.done("my-run")
    summary = stream.close(timeout_s=60)
    experiment = stub.experiments["my-run"]
    assert stub.opened == [
        {"slug": "my-run", "description": "my-run: 8 steps of lm.py", "meta": dict(OPEN.metadata)}
    ]
    messages = [
        (event["messageId"], event["event"].rpartition(".")[2], event["data"]) for event in stub.events
    ]
    assert messages == [
        (f"{FIRST}.0", "start", {"experimentId": experiment, "timestampMs": 1_000}),
        (
            f"{FIRST}.1",
            "annotate",
            {
                "experimentId": experiment,
                "timestampMs": 2_000,
                "annotation": "stage a -> b",
                "meta": {"from": "a", "step": 0, "to": "b"},
            },
        ),
        (f"{FIRST}.2", "metric", point(experiment, 2_001, 0, 2.5)),
        (f"{FIRST}.3", "metric", point(experiment, 2_002, 1, -0.0)),
        (f"{FIRST}.4", "done", {"experimentId": experiment, "timestampMs": 2_003}),
    ]
    assert math.copysign(1, messages[3][2]["metricValue"]) == -1
    assert [request.kind for request in stub.requests][-1] == "revoke"
    assert summary.dropped == {"syvain": {"not finite": 1}}
    assert (summary.unsent, summary.url) == (0, f"{stub.url}/dashboard/experiments/{experiment}")


def point(experiment, ts_ms, step, value):
    return {
        "experimentId": experiment,
        "timestampMs": ts_ms,
        "step": step,
        "metricName": "train/loss",
        "metricValue": value,
        "meta": {"split": "train"},
    }


def test_a_server_that_does_not_take_times_gets_none_but_those_of_metrics(stub):
    stub.accepts_timestamp_ms = False
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    stream.annotate(3, "x", {})
    stream.metrics(3, lambda: [("loss", 1.0, {})])
    stream.done("my-run")
    stream.close(timeout_s=60)
    experiment = {"experimentId": stub.experiments["my-run"]}
    assert stub.named("start") == stub.named("done") == [experiment]
    assert stub.named("annotate") == [{**experiment, "annotation": "x", "meta": {"step": 3}}]
    assert "timestampMs" in stub.named("metric")[0]


def test_a_failed_run_ends_with_an_error_in_place_of_done(stub):
    stream = EventStream([target(stub), MemoryTarget()])
    stream.open(OPEN)
    stream.fail(4, "ValueError: " + "x" * 20_000)
    stream.close(timeout_s=60)
    assert [event["event"].rpartition(".")[2] for event in stub.events] == ["start", "annotate", "error"]
    [error] = stub.named("error")
    assert error["error"] == ("ValueError: " + "x" * 20_000)[:8_000]
    assert error["meta"] == {"error_type": "ValueError"}
    assert stub.named("annotate")[0]["annotation"].startswith("failed: ValueError: xxx")


def test_an_interrupted_run_sends_neither(stub):
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    stream.annotate(4, "interrupted by SIGTERM at step 4", {"signal": "SIGTERM"})
    stream.close(timeout_s=60)
    assert [event["event"].rpartition(".")[2] for event in stub.events] == ["start", "annotate"]


def test_finite_values_of_a_batch_are_kept_and_the_others_counted(stub):
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    values = [1.0, math.nan, 2.0, math.inf, 3.0, -math.inf, 4.0, 1.7e308]
    stream.metrics(0, lambda: [("loss", value, {}) for value in values])
    summary = stream.close(timeout_s=60)
    assert [data["metricValue"] for data in stub.named("metric")] == [1.0, 2.0, 3.0, 4.0, 1.7e308]
    assert summary.dropped == {"syvain": {"not finite": 3}}


def test_steps_that_jump_and_go_back_are_all_sent(stub):
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    for step in (1, 2, 1_000_000, 3, 4):
        stream.metrics(step, lambda: [("loss", 1.0, {})])
    stream.close(timeout_s=60)
    assert [data["step"] for data in stub.named("metric")] == [1, 2, 1_000_000, 3, 4]


def test_batches_hold_at_most_a_thousand_events_in_order(stub):
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    stream.metrics(0, lambda: [(f"m{number}", 1.0, {}) for number in range(2_500)])
    stream.close(timeout_s=60)
    sizes = [len(request.events) for request in stub.of("write")]
    assert sizes[0] == 1, "the start"
    assert max(sizes) == 1_000
    assert [data["metricName"] for data in stub.named("metric")] == [f"m{n}" for n in range(2_500)]


def test_large_events_travel_in_requests_of_a_mebibyte(stub):
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    for step in range(100):
        stream.annotate(step, "x" * 15_000, {"error": "y" * 30_000})
    stream.close(timeout_s=60)
    assert len(stub.named("annotate")) == 100
    assert max(request.size_bytes for request in stub.of("write")) < 1.1 * (1 << 20)


def test_bodies_are_compressed_once_the_server_offered_it(stub):
    stub.next("open", metrics_stub.with_headers(accept_encoding="br, GZIP;q=1"))
    stream = EventStream([target(stub, pack=True)])
    stream.open(OPEN)
    stream.metrics(0, lambda: [(f"m{number}", 1.0, {}) for number in range(1_000)])
    stream.close(timeout_s=60)
    start, batch = stub.of("write")[0], stub.of("write")[-1]
    assert "content-encoding" not in start.headers, "too small to be worth it"
    assert batch.headers["content-encoding"] == "gzip"
    assert batch.size_bytes < 30_000
    assert batch.headers["accept-encoding"] == "gzip"
    assert len(stub.named("metric")) == 1_000


def test_nothing_is_compressed_on_the_way_to_this_machine(stub):
    stub.next("open", metrics_stub.with_headers(accept_encoding="gzip"))
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    stream.metrics(0, lambda: [(f"m{number}", 1.0, {}) for number in range(1_000)])
    stream.close(timeout_s=60)
    assert len(stub.named("metric")) == 1_000
    assert all("content-encoding" not in request.headers for request in stub.of("write"))
    assert {request.headers["accept-encoding"] for request in stub.of("write")} == {"identity"}


@pytest.mark.parametrize(
    ("host", "packs"),
    [
        ("http://127.0.0.1:4300", False),
        ("http://[::1]:4300/under", False),
        ("http://localhost", False),
        ("http://10.0.0.7:4300", True),
        ("http://localhost.example.com", True),
        ("https://metrics.041.io", True),
    ],
)
def test_only_what_names_this_machine_is_spared_the_packing(host, packs):
    client = MetricsClient(MetricsSettings(host, KEY))
    with contextlib.closing(client):
        assert client._http.headers["accept-encoding"] == ("gzip" if packs else "identity")


@pytest.mark.parametrize("offer", ["identity", "gzip;q=0", "deflate, br", ""])
def test_nothing_is_compressed_without_an_offer(stub, offer):
    stub.next("open", metrics_stub.with_headers(accept_encoding=offer))
    stub.next("auth", metrics_stub.with_headers(accept_encoding="gzip"))
    metrics = target(stub, pack=True)
    metrics.check()
    stream = EventStream([metrics])
    stream.open(OPEN)
    stream.metrics(0, lambda: [(f"m{number}", 1.0, {}) for number in range(1_000)])
    stream.close(timeout_s=60)
    assert all("content-encoding" not in request.headers for request in stub.of("write"))


def test_requests_say_who_sends_them(stub):
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    stream.close(timeout_s=60)
    headers = stub.of("open")[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["x-syvain-client"] == "slugline"
    assert headers["content-type"] == "application/json"
    assert "expect" not in headers


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_key_that_is_refused_is_rejected_before_anything_starts(stub, status):
    stub.next("auth", metrics_stub.http_error(status, "unknown key"))
    metrics = target(stub)
    with pytest.raises(
        Rejected, match=rf"refuses the key .HTTP {status}: .*unknown key.*O41_METRICS_API_KEY"
    ):
        metrics.check()
    assert [request.kind for request in stub.requests] == ["auth"]
    metrics.close(0)


def test_a_host_that_redirects_is_rejected(stub):
    stub.next("auth", metrics_stub.raw(301, b"", location="https://elsewhere.example/"))
    metrics = target(stub)
    with pytest.raises(Rejected, match=r"redirects to https://elsewhere.example/"):
        metrics.check()
    metrics.close(0)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_a_server_in_trouble_is_tried_three_times_and_then_only_said(stub, status, caplog):
    stub.next("auth", *[metrics_stub.http_error(status)] * 3)
    metrics = target(stub)
    metrics.check()
    assert len(stub.of("auth")) == 3
    assert "cannot be reached" in caplog.text
    metrics.close(0)


def test_a_server_that_answers_the_third_time_is_good(stub, caplog):
    stub.next("auth", metrics_stub.http_error(503), metrics_stub.dropped)
    metrics = target(stub)
    metrics.check()
    assert caplog.text == ""
    metrics.close(0)


def test_a_server_that_is_not_there_is_said_and_the_run_goes_on(caplog):
    metrics = target(None, url=f"http://127.0.0.1:{free_port()}")
    metrics.check()
    stream = EventStream([metrics])
    stream.open(OPEN)
    stream.metrics(0, lambda: [("loss", 1.0, {})])
    stream.done("my-run")
    summary = stream.close(timeout_s=0.2)
    assert (summary.unsent, summary.url, summary.dropped) == (2, None, {})
    assert "the run goes on" in caplog.text
    assert "2 events were not sent to Metrics" in caplog.text


def test_a_server_that_comes_late_gets_everything(caplog):
    caplog.set_level(logging.INFO)
    port = free_port()
    stream = EventStream([target(None, url=f"http://127.0.0.1:{port}")])
    stream.open(OPEN)
    stream.metrics(0, lambda: [("loss", 1.0, {})])
    stream.sync(stream.mark())
    while "takes no events now" not in caplog.text:
        threading.Event().wait(0.005)
    with serve(port=port) as stub:
        stream.done("my-run")
        assert stream.close(timeout_s=60).unsent == 0
        assert [event["messageId"] for event in stub.events] == [f"{FIRST}.{number}" for number in range(3)]
    assert "Metrics takes events again after" in caplog.text


def folders():
    lr = {
        "folderId": "00000000-0000-4000-8000-00000000000b",
        "name": "lr-sweep",
        "folders": [],
        "experiments": [],
    }
    lm = {
        "folderId": "00000000-0000-4000-8000-00000000000a",
        "name": "lm",
        "folders": [lr],
        "experiments": [],
    }
    return [lm]


@pytest.mark.parametrize("folder", ["/lm/lr-sweep", "/lm/lr-sweep/", "00000000-0000-4000-8000-00000000000B"])
def test_the_experiment_is_put_into_its_folder(stub, folder):
    stub.folders = folders()
    metrics = target(stub, folder=folder)
    metrics.check()
    stream = EventStream([metrics])
    stream.open(OPEN)
    stream.close(timeout_s=60)
    experiment = stub.experiments["my-run"]
    assert stub.placed == {experiment: "00000000-0000-4000-8000-00000000000b"}
    assert stub.of("move")[0].events[0]["data"] == {
        "experimentId": experiment,
        "fromFolderId": None,
        "toFolderId": "00000000-0000-4000-8000-00000000000b",
    }


def test_an_experiment_that_is_elsewhere_already_stays_there(stub, caplog):
    stub.folders = folders()
    conflict = {"code": "experiment_folder_move_conflict", "message": "no", "status": 409, "retryable": False}
    stub.next("move", metrics_stub.event_errors({0: conflict}))
    stream = EventStream([target(stub, folder="/lm")])
    stream.open(OPEN)
    stream.done("my-run")
    assert stream.close(timeout_s=60).unsent == 0
    assert "not put into its folder" not in caplog.text


def test_a_folder_that_is_refused_costs_only_the_place(stub, caplog):
    stub.folders = folders()
    refusal = {"code": "forbidden", "message": "no", "status": 403, "retryable": False}
    stub.next("move", metrics_stub.event_errors({0: refusal}))
    stream = EventStream([target(stub, folder="/lm")])
    stream.open(OPEN)
    stream.done("my-run")
    assert stream.close(timeout_s=60).unsent == 0
    assert "the experiment is not put into its folder: forbidden: no" in caplog.text


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("/lm/other", r"there is no 'other' in /lm, only: lr-sweep"),
        ("/x/y", r"there is no 'x' in /, only: lm"),
        ("00000000-0000-4000-8000-0000000000ff", "no folder of that id"),
    ],
)
def test_a_folder_that_is_not_there_is_rejected_before_anything_starts(stub, folder, message):
    stub.folders = folders()
    metrics = target(stub, folder=folder)
    with pytest.raises(Rejected, match=message):
        metrics.check()
    assert not stub.of("open")
    metrics.close(0)


def test_the_root_is_where_experiments_are_anyway(stub):
    metrics = target(stub, folder="/")
    metrics.check()
    stream = EventStream([metrics])
    stream.open(OPEN)
    stream.close(timeout_s=60)
    assert not stub.of("move")


def steps(stream, numbers):
    for number in numbers:
        stream.metrics(number, lambda number=number: [("loss", float(number), {})])


def test_what_metrics_never_got_arrives_through_the_checkpoint_once_and_first():
    """Metrics is down for two attempts, and each machine dies after its checkpoint."""
    down = f"http://127.0.0.1:{free_port()}"
    first = EventStream([target(None, FIRST, url=down)])
    first.open(OPEN)
    steps(first, [0, 1])
    backlog = first.backlog(first.mark())
    steps(first, [2])  # after the checkpoint: the resume makes it again
    assert backlog.names == (f"{FIRST}-1-2.jsonl",)
    assert backlog.new is not None

    second = EventStream([target(None, SECOND, url=down)])
    second.inherit([backlog.new])
    second.open(OPEN)
    steps(second, [2, 3])
    carried = second.backlog(second.mark())
    steps(second, [4])
    third_cut = second.backlog(second.mark())
    assert carried.names == (f"{FIRST}-1-2.jsonl", f"{SECOND}-1-2.jsonl")
    assert third_cut.names == (*carried.names, f"{SECOND}-3-3.jsonl"), "each event is in one segment"
    assert carried.new is not None
    assert third_cut.new is not None

    with serve() as stub:
        third = EventStream([target(stub, THIRD)])
        third.inherit([backlog.new, carried.new, third_cut.new])
        third.open(OPEN)
        steps(third, [5])
        third.done("my-run")
        assert third.close(timeout_s=60).unsent == 0
        assert [event["messageId"] for event in stub.events] == [
            f"{THIRD}.0",
            f"{FIRST}.1",
            f"{FIRST}.2",
            f"{SECOND}.1",
            f"{SECOND}.2",
            f"{SECOND}.3",
            f"{THIRD}.1",
            f"{THIRD}.2",
        ]
        assert [data["step"] for data in stub.named("metric")] == [0, 1, 2, 3, 4, 5]
    for stream in (first, second):
        stream.close(timeout_s=0)


def test_a_backlog_is_empty_once_metrics_has_everything(stub):
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    steps(stream, [0, 1])
    mark = stream.mark()
    while len(stub.named("metric")) < 2 or stream.backlog(mark).names:
        threading.Event().wait(0.002)
    assert stream.backlog(mark).new is None
    stream.close(timeout_s=60)


def test_both_copies_of_repeated_steps_are_sent_under_their_own_sessions(stub):
    for session, numbers in ((FIRST, [0, 1, 2]), (SECOND, [1, 2, 3])):
        stream = EventStream([target(stub, session)])
        stream.open(OPEN)
        steps(stream, numbers)
        stream.close(timeout_s=60)
    assert len(stub.experiments) == 1
    assert [data["step"] for data in stub.named("metric")] == [0, 1, 2, 1, 2, 3]
    assert len(stub.named("start")) == 2


def test_a_spool_without_room_drops_events_says_so_and_goes_on(stub, monkeypatch, caplog):
    metrics = target(stub)
    stream = EventStream([metrics])
    stream.open(OPEN)
    steps(stream, [0])
    stream.sync(stream.mark())
    monkeypatch.setattr(
        "runtime.events.syvain.spool.os.pwrite",
        lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")),
    )
    steps(stream, [1, 2])
    stream.sync(stream.mark())
    monkeypatch.undo()
    steps(stream, [3])
    summary = stream.close(timeout_s=60)
    assert [data["step"] for data in stub.named("metric")] == [0, 3]
    assert [event["messageId"] for event in stub.events] == [f"{FIRST}.{number}" for number in range(3)]
    assert summary.dropped == {"syvain": {"no room": 2}}
    assert caplog.text.count("the spool has no room") == 1


def test_a_server_that_hangs_costs_at_most_the_timeout(stub, caplog):
    asked, release = threading.Event(), threading.Event()

    def hang(server, request):
        asked.set()
        assert release.wait(60)
        return metrics_stub.dropped(server, request)

    stub.next("write", hang)
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    steps(stream, [0, 1])
    assert asked.wait(60)
    summary = stream.close(timeout_s=0.05)
    release.set()
    assert summary.unsent == 2
    assert summary.url is not None
    assert "2 events were not sent to Metrics" in caplog.text


def test_a_mistake_of_ours_is_logged_and_tried_again(stub, monkeypatch, caplog):
    real, calls = MetricsClient.open, []

    def mistaken(client, event):
        calls.append(event)
        if len(calls) == 1:
            raise KeyError("ours")
        return real(client, event)

    monkeypatch.setattr(MetricsClient, "open", mistaken)
    stream = EventStream([target(stub)])
    stream.open(OPEN)
    steps(stream, [0])
    assert stream.close(timeout_s=60).unsent == 0
    assert "sending to Metrics failed" in caplog.text
    assert "KeyError: 'ours'" in caplog.text


def test_an_idle_run_says_that_it_lives(stub):
    stream = EventStream([target(stub, pace=Pace(linger_s=0.01, heartbeat_s=0.02))])
    stream.open(OPEN)
    while len(stub.of("write")) < 4:
        threading.Event().wait(0.005)
    stream.close(timeout_s=60)
    assert {request.events[0]["messageId"] for request in stub.of("write")} == {f"{FIRST}.0"}
    assert len(stub.events) == 1, "what is sent twice is stored once"
