"""The REST API's telemetry and logs of runs: appended, read as lines, waited for."""

import gzip
import json
import threading

import pytest

from tests.support.metrics_server import MetricsClient
from tests.support.rest import Rest
from tests.support.run_points import lines_of, summary_of

POINTS = [{"step": step, "loss": 2.5 / (step + 1)} for step in range(30)]


@pytest.fixture
def rest(client):
    return Rest(client)


@pytest.fixture
def run(rest, slug):
    rest.ask("POST", "/runs", {"slug": slug})
    return f"/runs/{slug}"


def batch(points, after_seq=0, **more):
    return {"attempt": 1, "after_seq": after_seq, "points": points, **more}


class Later(threading.Thread):
    """A request that waits; `answer` joins it."""

    def __init__(self, server, path, **query):
        super().__init__()
        self.client = MetricsClient(server.url, server.key)
        self.ask = lambda: Rest(self.client).send("GET", path, wait_s=25, **query)
        self.response = None
        self.start()

    def run(self):
        self.response = self.ask()

    def answer(self):
        self.join()
        self.client.close()
        assert self.response is not None
        return self.response


def test_points_are_appended_after_the_last_one_and_read_as_lines(rest, run):
    first = batch([{"step": 1, "loss": 2.5}, {"step": 2}, {}], dropped={"not_json": 1}, cursor={"offset": 9})
    assert rest.ask("POST", f"{run}/telemetry", first) == {"last_seq": 3}
    response = rest.send("GET", f"{run}/telemetry/points")
    assert response.text == (
        '{"seq": 1, "data": {"step": 1, "loss": 2.5}}\n{"seq": 2, "data": {"step": 2}}\n'
        '{"seq": 3, "data": {}}\n'
    )
    assert response.headers["content-type"] == "application/x-ndjson"
    assert (response.headers["x-last-seq"], response.headers["x-run-final"]) == ("3", "false")


def test_what_was_sent_already_is_answered_with_the_cursor_to_go_on_from(rest, run):
    first = batch([{"a": 1}], dropped={"not_json": 1}, cursor={"offset": 9, "deep": [1.5, None]})
    rest.ask("POST", f"{run}/telemetry", first)
    response = rest.send("POST", f"{run}/telemetry", first)
    error = response.json()["error"]
    assert (response.status_code, error["details"]) == (409, "code=seq_moved; last_seq=1")
    assert error["stored"] == rest.ask("GET", f"{run}/telemetry/cursor")
    assert error["stored"] == {
        "last_seq": 1,
        "attempt": 1,
        "cursor": {"offset": 9, "deep": [1.5, None]},
        "keys": ["a"],
        "points": 1,
        "dropped": {"not_json": 1},
    }


def test_who_may_only_look_is_not_told_a_cursor_which_holds_digests_of_what_is_not_masked(rest, run):
    made = rest.ask("POST", "/keys", {"name": "looks", "role": "viewer"})
    looks = next(text for text in made.values() if isinstance(text, str) and text.startswith("slk_"))
    rest.ask("GET", f"{run}/telemetry/summary", token=looks)
    assert rest.refused("GET", f"{run}/telemetry/cursor", token=looks) == (403, "forbidden")


def test_a_run_that_nothing_was_sent_for_has_an_empty_cursor(rest, run):
    cursor = rest.ask("GET", f"{run}/telemetry/cursor")
    assert cursor == {"last_seq": 0, "attempt": 0, "cursor": None, "keys": [], "points": 0, "dropped": {}}
    assert rest.send("GET", f"{run}/telemetry/points").text == ""


def test_the_summary_is_kept_with_every_batch(rest, run):
    for first in range(0, 30, 7):
        rest.ask("POST", f"{run}/telemetry", batch(POINTS[first : first + 7], first, attempt=1 + first // 14))
    found = rest.ask("GET", f"{run}/telemetry/summary")
    assert [list(key.values()) for key in found["keys"]] == summary_of(POINTS)
    assert (found["points"], found["last_seq"], found["final"]) == (30, 30, False)
    assert [(mark["attempt"], mark["after_seq"]) for mark in found["attempts"]] == [(1, 0), (2, 14), (3, 28)]


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_any_part_is_read_in_either_encoding(rest, client, run, encoding):
    for first in range(0, 30, 4):
        rest.ask("POST", f"{run}/telemetry", batch(POINTS[first : first + 4], first))
    headers = client.authorization | {"accept-encoding": encoding}
    for after, limit in [(0, 30), (0, 1), (3, 9), (29, 5), (30, 5), (1000, 1)]:
        query = {"after": after, "limit": limit}
        with client.http.stream(
            "GET", f"/api/v1{run}/telemetry/points", params=query, headers=headers
        ) as response:
            raw = b"".join(response.iter_raw())
        assert response.headers.get("content-encoding", "identity") == encoding
        text = gzip.decompress(raw) if encoding == "gzip" else raw
        assert text == lines_of(POINTS[after : after + limit], first=after + 1), (after, limit)


def test_numbers_come_back_to_the_bit(rest, run):
    numbers = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 2**53 + 1, 2**64 - 1, -(2**63), 1e22, 3e-4, 100.0]
    points = [{"a": number} for number in numbers]
    rest.ask("POST", f"{run}/telemetry", batch(points))
    found = [
        json.loads(line)["data"]["a"]
        for line in rest.send("GET", f"{run}/telemetry/points").text.splitlines()
    ]
    assert [(type(number), repr(number)) for number in found] == [
        (type(number), repr(number)) for number in numbers
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(batch([{"train/loss": 1}]), "limit_exceeded", id="key"),
        pytest.param(batch([{"a" + str(n): n for n in range(65)}]), "limit_exceeded", id="65-numbers"),
        pytest.param(
            batch([{f"k{n}-{m}": 1 for m in range(60)} for n in range(5)]), "limit_exceeded", id="keys"
        ),
        pytest.param(batch([{"a": float("nan")}]), "limit_exceeded", id="nan"),
        pytest.param(batch([{"a": float("inf")}]), "limit_exceeded", id="inf"),
        pytest.param(batch([{"a": True}]), "invalid_request", id="boolean"),
        pytest.param(batch([{"a": "1"}]), "invalid_request", id="text"),
        pytest.param(batch([{"a": {"b": 1}}]), "invalid_request", id="nested"),
        pytest.param(batch([{}] * 10_001), "invalid_request", id="10001-points"),
        pytest.param(batch([], -1), "invalid_request", id="seq"),
        pytest.param(batch([], attempt=-1), "invalid_request", id="attempt"),
        pytest.param(batch([], dropped={"Not a reason": 1}), "invalid_request", id="reason"),
        pytest.param(batch([], dropped={"not_json": -1}), "invalid_request", id="count"),
        pytest.param(
            batch([], dropped={"a" + "b" * n: 1 for n in range(64)} | {"z": 1}),
            "limit_exceeded",
            id="reasons",
        ),
        pytest.param(batch([], cursor={"a": "b" * 16_384}), "limit_exceeded", id="cursor"),
        pytest.param(batch([], cursor={"a": "\ud800"}), "invalid_request", id="cursor-surrogate"),
        pytest.param(batch([], cursor=[]), "invalid_request", id="cursor-array"),
        pytest.param({"attempt": 1, "after_seq": 0}, "invalid_request", id="no-points"),
    ],
)
def test_a_batch_out_of_bounds_is_refused_whole(rest, run, body, code):
    body = {**body, "points": [{"a": 1}, *body["points"]]} if body.get("points") else body
    assert rest.refused("POST", f"{run}/telemetry", body) == (422, code)
    assert rest.ask("GET", f"{run}/telemetry/cursor")["attempt"] == 0


def test_a_body_of_more_than_eight_mib_is_not_read(rest, run):
    body = batch([{"k" * 900 + str(number): 1 for number in range(60)}] * 180)
    assert rest.refused("POST", f"{run}/telemetry", body) == (413, "body_too_large")


@pytest.mark.parametrize("query", [{"after": -1}, {"limit": 0}, {"wait_s": 26}, {"after": "x"}])
def test_a_query_out_of_bounds_is_refused(rest, run, query):
    assert rest.refused("GET", f"{run}/telemetry/points", **query) == (422, "invalid_request")


def test_who_waits_gets_the_points_when_they_come(rest, server, run):
    later = Later(server, f"{run}/telemetry/points")
    summary = Later(server, f"{run}/telemetry/summary")
    rest.ask("POST", f"{run}/telemetry", batch([]))
    rest.ask("POST", f"{run}/telemetry", batch(POINTS[:2]))
    assert later.answer().text.encode() == lines_of(POINTS[:2])
    assert later.answer().headers["x-run-final"] == "false"
    assert summary.answer().json()["data"]["points"] == 2


def test_who_waits_is_told_when_the_run_ends(rest, server, run):
    rest.ask("POST", f"{run}/telemetry", batch(POINTS[:2]))
    later = Later(server, f"{run}/telemetry/points", after=2)
    rest.ask("PATCH", run, {"state": "running"})
    rest.ask("PATCH", run, {"state": "done"})
    response = later.answer()
    assert (response.text, response.headers["x-run-final"], response.headers["x-last-seq"]) == (
        "",
        "true",
        "2",
    )
    assert rest.send("GET", f"{run}/telemetry/points", after=2, wait_s=25).headers["x-run-final"] == "true"


def test_who_waits_for_a_run_that_goes_is_told_so(rest, server, run):
    later = Later(server, f"{run}/telemetry/points")
    rest.ask("DELETE", f"/experiments/{rest.ask('GET', run)['experiment_id']}")
    assert later.answer().status_code == 404


def test_a_wait_that_is_over_is_answered_with_nothing(rest, run):
    response = rest.send("GET", f"{run}/telemetry/points", wait_s=0.05)
    assert (response.status_code, response.text) == (200, "")


def test_a_log_is_appended_and_read_from_a_byte_on(rest, run):
    assert rest.ask("POST", f"{run}/log", {"attempt": 1, "offset": 0, "text": "é\0\n"}) == {"offset": 4}
    assert rest.ask("POST", f"{run}/log", {"attempt": 1, "offset": 4, "text": "two\n"}) == {"offset": 8}
    response = rest.send("POST", f"{run}/log", {"attempt": 1, "offset": 4, "text": "two\n"})
    assert (response.status_code, response.json()["error"]["stored"]) == (409, {"offset": 8})
    assert rest.ask("GET", f"{run}/log/cursor", attempt=1) == {"offset": 8}
    assert rest.ask("GET", f"{run}/log/cursor", attempt=2) == {"offset": 0}
    response = rest.send("GET", f"{run}/log", after=4)
    assert (response.text, response.headers["content-type"]) == ("two\n", "text/plain; charset=utf-8")
    assert rest.send("GET", f"{run}/log").text == "é\0\ntwo\n"
    shown = {
        name: response.headers[name] for name in ("x-attempt", "x-log-size", "x-next-attempt", "x-run-final")
    }
    assert shown == {"x-attempt": "1", "x-log-size": "8", "x-next-attempt": "", "x-run-final": "false"}


def test_a_number_in_the_log_stays_text(rest, run):
    text = "{\"step\": 1, \"loss\": 0.5}\n{'eval_loss': 0.0267, 'epoch': 0.04}\n"
    rest.ask("POST", f"{run}/log", {"attempt": 1, "offset": 0, "text": text})
    found = rest.ask("GET", f"{run}/telemetry/summary")
    assert (found["points"], found["keys"], found["dropped"]) == (0, [], {})
    assert rest.send("GET", f"{run}/log").text == text


def test_logs_are_read_one_attempt_after_another(rest, run):
    for attempt in (1, 3):
        rest.ask("POST", f"{run}/log", {"attempt": attempt, "offset": 0, "text": f"attempt {attempt}\n"})
    assert rest.send("GET", f"{run}/log").text == "attempt 3\n"
    seen, following = [], "0"
    while following:
        response = rest.send("GET", f"{run}/log", attempt=following)
        seen.append(response.text)
        following = response.headers["x-next-attempt"]
    assert seen == ["", "attempt 1\n", "attempt 3\n"]


def test_who_waits_for_a_log_is_answered_with_more_of_it_a_later_one_or_the_end(rest, server, run):
    rest.ask("POST", f"{run}/log", {"attempt": 1, "offset": 0, "text": "one\n"})
    more = Later(server, f"{run}/log", attempt=1, after=4)
    rest.ask("POST", f"{run}/log", {"attempt": 1, "offset": 4, "text": "two\n"})
    assert more.answer().text == "two\n"
    following = Later(server, f"{run}/log", attempt=1, after=8)
    rest.ask("POST", f"{run}/log", {"attempt": 2, "offset": 0, "text": "again\n"})
    assert following.answer().headers["x-next-attempt"] == "2"
    end = Later(server, f"{run}/log", attempt=2, after=6)
    rest.ask("PATCH", run, {"state": "failed"})
    assert (end.answer().text, end.answer().headers["x-run-final"]) == ("", "true")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param({"text": "a" * (2**20 + 1)}, 422, "invalid_request", id="long"),
        pytest.param({"text": "é" * (2**19 + 1)}, 422, "limit_exceeded", id="long-in-bytes"),
        pytest.param({"text": "\ud800"}, 422, "invalid_request", id="surrogate"),
        pytest.param({"offset": -1}, 422, "invalid_request", id="offset"),
        pytest.param({"attempt": 10**7}, 422, "invalid_request", id="attempt"),
        pytest.param({"offset": 1}, 409, "offset_moved", id="gap"),
    ],
)
def test_a_text_out_of_bounds_is_refused(rest, run, body, status, code):
    assert rest.refused("POST", f"{run}/log", {"attempt": 1, "offset": 0, "text": "a", **body}) == (
        status,
        code,
    )
    assert rest.ask("GET", f"{run}/log/cursor", attempt=1) == {"offset": 0}
