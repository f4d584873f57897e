"""Every row of the protocol's error tables, over real HTTP. The sender is stepped by hand: nothing waits."""

import logging
import threading

import pytest

from runtime.events.kinds import Metric, Open
from runtime.events.syvain.client import MetricsClient
from runtime.events.syvain.sender import Pace, Sender
from runtime.events.syvain.settings import MetricsSettings
from runtime.events.syvain.spool import Spool
from runtime.events.syvain.wire import spool_line
from tests.support import metrics_stub
from tests.support.metrics_stub import KEY, answers_changed, dropped, event_errors, http_error, raw, serve

SESSION = "a" * 32
OPEN = Open(1_000, "my-run", "d", {"entry": "lm.py"})


class Driver:
    """A sender with a spool, whose steps the test takes; `waits` are the pauses it asked for in trouble."""

    def __init__(self, stub, num_events=0, **pace):
        self.stub = stub
        self.now = 0.0
        self.spool = Spool()
        self.client = MetricsClient(MetricsSettings(stub.url, KEY), timeout_s=60, pack=True)
        self.sender = Sender(
            self.client,
            self.spool,
            session=SESSION,
            pace=Pace(linger_s=0, **pace),
            clock=lambda: self.now,
            clock_ms=lambda: stub.now_ms() + round(self.now * 1000),
        )
        self.sender.open_with(OPEN)
        self.waits = []
        self.add(num_events)

    def add(self, num_events):
        lines: list[bytes] = []
        for _ in range(num_events):
            number = self.spool.end + len(lines) + 1
            event = Metric(2_000 + number, number, "loss", number / 2, {})
            lines.append(spool_line(SESSION, number, event, event.encode()))
        self.spool.append(lines)

    def run(self, *, until_trouble=False):
        """Step until there is nothing to do; return whether the sender has not ended."""
        self.waits = []
        for _ in range(200):
            pause_s = self.sender.step()
            if pause_s is None:
                return False
            if self.sender._troubled_since is not None:
                self.waits.append(pause_s)
                self.now += pause_s
                if until_trouble:
                    return True
            elif pause_s > 0:
                return True
        raise AssertionError("it never comes to rest")

    @property
    def stored(self):
        return [int(event["messageId"].rpartition(".")[2]) for event in self.stub.events]


@pytest.fixture
def stub():
    with serve() as server:
        yield server


@pytest.fixture
def driver(stub):
    driver = Driver(stub)
    assert driver.run()
    driver.add(3)
    yield driver
    driver.client.close()


def sent(stub, kind="write"):
    """The numbers of the events of each request since the start."""
    return [
        [int(event["messageId"].rpartition(".")[2]) for event in request.events] for request in stub.of(kind)
    ][1:]


# HTTP errors of a batch


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599, 302, 307])
def test_a_batch_is_sent_again_with_the_same_ids(stub, driver, status):
    stub.next("write", http_error(status), http_error(status))
    driver.run()
    assert sent(stub) == [[1, 2, 3]] * 3
    assert driver.waits == [0.5, 1.0]
    assert driver.stored == [0, 1, 2, 3]
    assert not driver.sender.dropped
    assert driver.spool.acknowledged == 3


@pytest.mark.parametrize("status", [400, 404, 405, 409, 410, 413, 415, 422, 451])
def test_a_batch_that_is_refused_is_dropped_counted_and_said(stub, driver, status, caplog):
    if status == 413:
        driver = Driver(stub)
        driver.run()
        driver.add(1)
    stub.next("write", http_error(status, "not like this"))
    driver.run()
    number = 1 if status == 413 else 3
    assert driver.sender.dropped == {f"refused (HTTP {status})": number}
    assert f"HTTP {status} not like this" in caplog.text
    assert driver.waits == []
    driver.add(2)
    driver.run()
    assert driver.stored == [0, number + 1, number + 2]
    driver.client.close()


def test_a_request_that_is_too_large_is_sent_in_halves(stub, driver):
    driver.add(5)
    stub.next("write", http_error(413), http_error(413), http_error(413))
    driver.run()
    assert sent(stub) == [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4], [1, 2], [1], [2, 3], [4, 5, 6, 7], [8]]
    assert driver.stored == list(range(9))
    assert not driver.sender.dropped


def test_only_the_event_that_is_too_large_by_itself_is_dropped(stub, driver):
    stub.next("write", http_error(413), http_error(413))
    driver.run()
    assert sent(stub) == [[1, 2, 3], [1], [2], [3]]
    assert driver.sender.dropped == {"refused (HTTP 413)": 1}
    assert driver.stored == [0, 2, 3]


def test_a_compressed_body_that_is_refused_is_sent_plain_from_then_on(stub):
    driver = Driver(stub)
    stub.next("open", metrics_stub.with_headers(accept_encoding="gzip"))
    driver.run()
    driver.add(100)
    stub.next("write", http_error(415))
    driver.run()
    driver.add(100)
    driver.run()
    encodings = [request.headers.get("content-encoding") for request in stub.of("write")]
    assert encodings == [None, "gzip", None, None]
    assert driver.stored == list(range(201))
    assert not driver.sender.dropped
    driver.client.close()


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_renewed_once_and_the_batch_sent_again(stub, driver, status):
    stub.next("write", http_error(status))
    driver.run()
    assert sent(stub) == [[1, 2, 3], [1, 2, 3]]
    tokens = [request.headers["authorization"] for request in stub.of("write")[1:]]
    assert tokens[0] != tokens[1]
    [refresh] = stub.of("tokenRefresh")
    assert refresh.events[0]["data"] == {
        "experimentId": stub.experiments["my-run"],
        "experimentToken": tokens[0].removeprefix("Bearer "),
    }
    assert driver.stored == [0, 1, 2, 3]


@pytest.mark.parametrize("status", [401, 403])
def test_a_second_refusal_of_the_token_drops_the_batch(stub, driver, status):
    stub.next("write", http_error(status), http_error(status))
    driver.run()
    assert len(stub.of("tokenRefresh")) == 1
    assert driver.sender.dropped == {f"refused (HTTP {status})": 3}
    driver.now += 60
    driver.add(1)
    stub.next("write", http_error(status))
    driver.run()
    assert len(stub.of("tokenRefresh")) == 2, "the next batch may renew again"
    assert driver.stored == [0, 4]


@pytest.mark.parametrize("body", [b"<html>sorry</html>", b"", b"[{", b"\xff"])
def test_a_success_that_is_no_json_is_sent_again(stub, driver, body):
    stub.next("write", raw(200, body))
    driver.run()
    assert sent(stub) == [[1, 2, 3], [1, 2, 3]]
    assert driver.stored == [0, 1, 2, 3]


@pytest.mark.parametrize("body", [b"[]", b"{}", b"null", b'["x", 3, null]', b'[{"correlationId":["x"]}]'])
def test_a_success_without_answers_is_sent_again(stub, driver, body):
    stub.next("write", raw(200, body))
    driver.run()
    assert sent(stub) == [[1, 2, 3], [1, 2, 3]]
    assert driver.stored == [0, 1, 2, 3]


@pytest.mark.parametrize("status", [200, 201, 202, 207, 299])
def test_every_success_with_answers_counts(stub, driver, status):
    stub.next(
        "write",
        lambda stub, request: metrics_stub.Answer(status, stub.apply(request).body),
    )
    driver.run()
    assert sent(stub) == [[1, 2, 3]]
    assert driver.spool.acknowledged == 3


def test_a_success_without_a_body_is_sent_again(stub, driver):
    stub.next("write", raw(204, b""))
    driver.run()
    assert sent(stub) == [[1, 2, 3], [1, 2, 3]]


def test_only_unanswered_events_are_sent_again(stub, driver):
    stub.next("write", answers_changed(lambda replies: replies[1:2]))
    driver.run()
    assert sent(stub) == [[1, 2, 3], [1, 3]]
    assert driver.stored == [0, 1, 2, 3]


def test_answers_may_come_in_any_order_and_twice_and_from_strangers(stub, driver):
    stranger = {"correlationId": "x.9", "event": "syvain.v2.error", "data": {"status": 400}}
    stub.next("write", answers_changed(lambda replies: [stranger, *replies[::-1], *replies]))
    driver.run()
    assert sent(stub) == [[1, 2, 3]]
    assert not driver.sender.dropped


def test_what_a_success_is_called_does_not_matter(stub, driver):
    stub.next(
        "write", answers_changed(lambda replies: [{"correlationId": r["correlationId"]} for r in replies])
    )
    driver.run()
    assert sent(stub) == [[1, 2, 3]]


def test_a_dropped_connection_repeats_the_same_ids(stub, driver):
    stub.next("write", dropped, metrics_stub.applied_then_dropped)
    driver.run()
    assert sent(stub) == [[1, 2, 3]] * 3
    assert stub.num_repeated == 3
    assert driver.stored == [0, 1, 2, 3]


def test_an_answer_that_does_not_come_in_time_repeats_the_same_ids(stub, driver):
    release = threading.Event()

    def late(server, request):
        assert release.wait(60)
        return metrics_stub.applied_then_dropped(server, request)

    stub.next("write", late)
    driver.client._http.timeout = 0.1
    driver.run(until_trouble=True)
    release.set()
    driver.client._http.timeout = 60
    driver.run()
    assert sent(stub) == [[1, 2, 3]] * 2
    assert stub.num_repeated == 3
    assert driver.stored == [0, 1, 2, 3]
    assert not driver.sender.dropped


def test_new_events_wait_for_the_batch_before_them(stub, driver):
    stub.next("write", http_error(503), http_error(503))
    driver.run(until_trouble=True)
    driver.add(2)
    driver.run()
    assert sent(stub) == [[1, 2, 3]] * 3 + [[4, 5]]


# Waiting


def test_waits_double_from_half_a_second_to_ten_for_ever_and_start_again(stub, driver):
    stub.next("write", *[http_error(500)] * 8)
    driver.run()
    assert driver.waits == [0.5, 1, 2, 4, 8, 10, 10, 10]
    driver.add(1)
    stub.next("write", http_error(500))
    driver.run()
    assert driver.waits == [0.5]


@pytest.mark.parametrize(
    ("asked", "waited"),
    [("7", 7), ("0", 0.5), ("3600", 60), ("-1", 0.5), ("soon", 0.5), ("Fri, 31 Dec 2100 23:59:59 GMT", 0.5)],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_in_seconds(stub, driver, status, asked, waited):
    stub.next("write", http_error(status, retry_after=asked))
    driver.run()
    assert driver.waits == [waited]


@pytest.mark.parametrize(
    ("asked", "waited"), [(1500, 1.5), (0, 0.5), (-5, 0.5), ("9", 0.5), (None, 0.5), (True, 0.5)]
)
def test_retry_after_ms_of_an_event_is_honoured(stub, driver, asked, waited):
    stub.next("write", event_errors({1: error(503, retryable=True) | {"retryAfterMs": asked}}))
    driver.run()
    assert driver.waits == [waited]
    assert sent(stub) == [[1, 2, 3], [2]]


def test_the_longest_wait_of_several_events_counts(stub, driver):
    asked = {place: error(503, retryable=True) | {"retryAfterMs": 1000 * place} for place in (0, 1, 2)}
    stub.next("write", event_errors(asked))
    driver.run()
    assert driver.waits == [2.0]


# Errors of single events


def error(status, *, retryable=None, code="some_code"):
    fields = {"code": code, "message": "because", "status": status, "retryable": retryable}
    return {key: value for key, value in fields.items() if value is not None}


@pytest.mark.parametrize(
    "data",
    [
        *[error(status, retryable=True) for status in (408, 425, 429, 500, 503)],
        *[error(status) for status in (408, 425, 429, 500, 503, None)],
        error(400, retryable=True),  # its own word counts
        {},
        None,
        "odd",
    ],
)
def test_an_event_that_may_be_tried_again_is_sent_again_alone(stub, driver, data):
    stub.next("write", event_errors({1: data}))
    driver.run()
    assert sent(stub) == [[1, 2, 3], [2]]
    assert not driver.sender.dropped
    assert driver.stored == [0, 1, 3, 2]


@pytest.mark.parametrize(
    "data",
    [
        *[error(status, retryable=False) for status in (400, 401, 403, 404, 409, 413, 422)],
        *[error(status) for status in (400, 401, 403, 404, 409, 413, 422)],
        error(503, retryable=False),
    ],
)
def test_an_event_that_is_refused_for_good_costs_only_itself(stub, driver, data, caplog):
    stub.next("write", event_errors({1: data}))
    driver.run()
    assert sent(stub) == [[1, 2, 3]]
    assert driver.sender.dropped == {"refused (some_code)": 1}
    assert f"Metrics refuses {SESSION}.2: because" in caplog.text
    assert driver.stored == [0, 1, 3]
    assert driver.waits == []
    assert not stub.of("tokenRefresh"), "an event's 401 says nothing about the token"


def test_refused_retried_and_unanswered_events_of_one_request_each_get_their_way(stub, driver):
    driver.add(2)
    both = event_errors({0: error(400), 2: error(503)})
    stub.next("write", lambda stub, request: unanswered(both(stub, request), 3))
    driver.run()
    assert sent(stub) == [[1, 2, 3, 4, 5], [3, 4]]
    assert driver.sender.dropped == {"refused (some_code)": 1}


def unanswered(answer, place):
    import json

    replies = json.loads(answer.body)
    del replies[place]
    return metrics_stub.Answer(body=json.dumps(replies).encode())


def test_what_is_refused_alike_is_said_once_and_counted_each_time(stub, driver, caplog):
    stub.next("write", event_errors({0: error(400), 1: error(400), 2: error(400, code="other")}))
    driver.run()
    assert driver.sender.dropped == {"refused (some_code)": 2, "refused (other)": 1}
    assert caplog.text.count("Metrics refuses") == 2


# Opening


OPEN_AGAIN = [
    *[http_error(status) for status in (408, 425, 429, 500, 503, 307)],
    dropped,
    raw(200, b"<html>"),
    raw(200, b"[]"),
    raw(200, b"{}"),
    raw(200, b'[{"event":"syvain.v2.experiment.opened"}]'),
    raw(200, b'[{"event":"syvain.v2.experiment.opened","data":[]}]'),
    answers_changed(lambda replies: [{**replies[0], "data": {**replies[0]["data"], "expiresAtMs": 1.5e12}}]),
    answers_changed(lambda replies: [{**replies[0], "data": {**replies[0]["data"], "expiresAtMs": True}}]),
    answers_changed(lambda replies: [{**replies[0], "data": {**replies[0]["data"], "experimentId": None}}]),
    *[event_errors({0: error(status)}) for status in (408, 425, 429, 500, None)],
]


@pytest.mark.parametrize("behaviour", OPEN_AGAIN)
def test_an_open_that_may_work_later_is_tried_again_with_a_new_id(stub, behaviour):
    driver = Driver(stub, 2)
    stub.next("open", behaviour, behaviour)
    driver.run()
    assert driver.waits == [0.5, 1.0]
    assert len({request.events[0]["messageId"] for request in stub.of("open")}) == 3
    assert driver.stored == [0, 1, 2]
    assert len(stub.experiments) == 1
    driver.client.close()


@pytest.mark.parametrize(
    "behaviour",
    [
        *[http_error(status) for status in (400, 401, 403, 404, 409, 413, 415, 422)],
        *[event_errors({0: error(status)}) for status in (400, 401, 403, 404, 409, 422)],
    ],
)
def test_an_open_that_is_refused_ends_the_sending_and_keeps_the_events(stub, behaviour, caplog):
    driver = Driver(stub, 2)
    stub.next("open", behaviour)
    assert not driver.run()
    assert "Metrics refuses this run" in caplog.text
    assert driver.sender.num_unsent == 2
    assert len(driver.spool.read(0, most_lines=9, most_bytes=9999)) == 2
    assert not driver.sender.dropped
    driver.client.close()


def test_a_start_follows_every_open(stub):
    driver = Driver(stub, 1)
    driver.run()
    assert [[event["event"].rpartition(".")[2] for event in r.events] for r in stub.of("write")] == [
        ["start"],
        ["metric"],
    ]
    driver.client.close()


def test_a_start_that_is_not_taken_is_sent_again(stub):
    driver = Driver(stub, 1)
    stub.next("write", http_error(503), event_errors({0: error(500)}), raw(200, b"[]"))
    driver.run()
    assert driver.waits == [0.5, 1.0, 2.0]
    assert driver.stored == [0, 1]
    driver.client.close()


def test_a_start_that_is_refused_is_said_and_costs_nothing_else(stub, caplog):
    driver = Driver(stub, 1)
    stub.next("write", event_errors({0: error(400)}))
    driver.run()
    assert driver.stored == [1]
    assert f"Metrics refuses {SESSION}.0: because" in caplog.text
    assert not driver.sender.dropped
    driver.client.close()


# Tokens


def test_a_token_is_renewed_five_minutes_before_it_expires(stub, driver):
    driver.run()
    driver.now = 24 * 3600 - 301
    driver.add(1)
    driver.run()
    assert not stub.of("tokenRefresh")
    driver.now += 2
    driver.add(1)
    driver.run()
    assert [request.kind for request in stub.requests][-2:] == ["tokenRefresh", "write"]
    assert driver.stored == [0, 1, 2, 3, 4, 5]


def test_tokens_that_live_shorter_than_five_minutes_are_renewed_once_a_minute(stub):
    stub.token_lifetime_ms = 120_000
    driver = Driver(stub)
    for _ in range(60):
        driver.now += 10
        driver.add(1)
        driver.run()
    assert 9 <= len(stub.of("tokenRefresh")) <= 11
    assert driver.stored == list(range(61))
    driver.client.close()


@pytest.mark.parametrize("form", [http_error, lambda status: event_errors({0: error(status)})])
@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_renewal_in_trouble_is_tried_again(stub, driver, form, status):
    stub.next("write", http_error(401))
    stub.next("tokenRefresh", form(status), form(status))
    driver.run()
    assert len(stub.of("tokenRefresh")) == 3
    assert driver.stored == [0, 1, 2, 3]
    assert sent(stub) == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(
    "behaviour",
    [
        *[http_error(status) for status in (400, 404, 409, 410, 422)],
        *[event_errors({0: error(status)}) for status in (400, 404, 409, 410, 422)],
        raw(200, b"<html>"),
        raw(200, b"[]"),
        answers_changed(lambda replies: [{**replies[0], "data": {"experimentId": "x"}}]),
    ],
)
def test_a_renewal_that_is_refused_opens_the_experiment_again(stub, driver, behaviour):
    stub.next("write", http_error(401))
    stub.next("tokenRefresh", behaviour)
    driver.run()
    assert len(stub.of("open")) == 2
    assert stub.opened[0] == stub.opened[1]
    assert sent(stub) == [[1, 2, 3], [0], [1, 2, 3]], "a start follows every open"
    assert driver.stored == [0, 1, 2, 3]


@pytest.mark.parametrize("form", [http_error, lambda status: event_errors({0: error(status)})])
@pytest.mark.parametrize("status", [401, 403])
def test_a_renewal_with_a_refused_key_ends_the_sending(stub, driver, form, status, caplog):
    stub.next("write", http_error(401))
    stub.next("tokenRefresh", form(status))
    assert not driver.run()
    assert "Metrics refuses this run" in caplog.text
    assert driver.sender.num_unsent == 3


def test_a_server_that_refuses_every_token_is_not_flooded(stub, driver):
    stub.next("write", *[http_error(401)] * 20)
    for _ in range(5):
        driver.run()
        driver.add(1)
    assert driver.now >= 0.5 * (len(stub.of("tokenRefresh")) - 1)


def test_the_token_is_given_back_at_the_end_whatever_comes_of_it(stub, driver):
    for behaviour in (None, http_error(500), http_error(401), dropped):
        if behaviour is not None:
            stub.next("revoke", behaviour)
        driver.sender.end()
        assert not driver.run()
    [event] = stub.of("revoke")[0].events
    assert event["event"] == "syvain.v2.experiment.tokenRevoke"
    assert event["data"] == {"experimentId": stub.experiments["my-run"]}


# Silence


def test_after_silence_the_start_is_sent_again_and_stored_once(stub, driver):
    driver.run()
    beats = len(stub.of("write"))
    for _ in range(10):
        pause_s = driver.sender.step()
        assert pause_s is not None
        driver.now += pause_s
    driver.run()
    requests = stub.of("write")[beats:]
    assert len(requests) >= 4
    assert all([event["messageId"] for event in request.events] == [f"{SESSION}.0"] for request in requests)
    assert driver.stored == [0, 1, 2, 3]
    assert driver.now <= 25 * (len(requests) + 1)


def test_the_outage_and_its_end_are_each_said_once(stub, driver, caplog):
    caplog.set_level(logging.INFO)
    stub.next("write", *[http_error(500, "ouch")] * 5)
    driver.run()
    assert caplog.text.count("Metrics takes no events now (HTTP 500 ouch): they are kept and sent later") == 1
    assert caplog.text.count("Metrics takes events again after 15.5 s") == 1
