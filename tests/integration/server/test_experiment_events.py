"""What a run writes to its experiment, event by event."""

import gzip
import json
import re
import time
import uuid

import pytest


def codes(replies):
    return [reply["data"].get("code") for reply in replies]


def names(replies):
    return [reply["event"].removeprefix("syvain.v2.") for reply in replies]


def test_every_kind_of_event_is_answered_by_its_name(client, experiment):
    replies = experiment.send(
        experiment.event("start"),
        experiment.metric("loss", 1.0, 0, timestampMs=5, meta={"split": "train"}),
        experiment.event("annotate", annotation="note", meta={"k": [1], "step": 5}),
        experiment.event("done"),
        experiment.event("error", error="ValueError: boom", meta={"error_type": "ValueError"}),
        experiment.event("tokenRevoke"),
    )
    assert names(replies) == [
        *("experiment.started", "experiment.metricRecorded", "experiment.annotated"),
        *("experiment.done", "experiment.errored", "experiment.tokenRevoked"),
    ]
    assert str(uuid.UUID(replies[2]["data"]["annotationId"])) == replies[2]["data"]["annotationId"]
    assert experiment.post([]).status_code == 401
    record = client.record(experiment.id)
    assert (record["status"], record["error"]) == (
        "error",
        {"message": "ValueError: boom", "meta": {"error_type": "ValueError"}},
    )


@pytest.mark.parametrize("value", [-0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e-7, -1.0, 123456789.123])
def test_values_come_back_bit_for_bit(client, experiment, value):
    experiment.send(experiment.metric("m", value, 2**53 - 2, timestampMs=2**53 - 1))
    ((step, timestamp, got),) = client.points(experiment.id)["m", ()]
    assert (step, timestamp, got.hex()) == (2**53 - 2, 2**53 - 1, value.hex())


def test_steps_in_any_order_are_all_stored(client, experiment):
    experiment.send(*[experiment.metric("m", float(step), step) for step in (1, 2, 1_000_000, 3, 4)])
    assert [step for step, _, _ in client.points(experiment.id)["m", ()]] == [1, 2, 3, 4, 1_000_000]


def test_metadata_maps_are_told_apart_exactly(client, experiment):
    metas = [{}, {"a": ""}, {"": "a"}, {"a": "\x00"}, {"a": "é"}, {"a": "1", "b": "2"}]
    experiment.send(*[experiment.metric("m", float(place), 0, meta=meta) for place, meta in enumerate(metas)])
    experiment.send(experiment.metric("m", 9.0, 1, meta={"b": "2", "a": "1"}))
    found = client.points(experiment.id)
    assert {key: [value for _, _, value in rows] for key, rows in found.items()} == {
        ("m", tuple(sorted(meta.items()))): [float(place)] + [9.0] * (len(meta) == 2)
        for place, meta in enumerate(metas)
    }


def test_one_bad_event_costs_only_itself(client, experiment):
    replies = experiment.send(
        experiment.metric("m", 1.0, 0),
        experiment.metric("m", 1.0, -1),
        experiment.metric("m", 1.0, 1.5),
        experiment.metric("", 1.0, 0),
        experiment.metric("m", 1.0, 0, meta={"a": 1}),
        experiment.metric("m", 1.0, 0, timestampMs=2**53),
        experiment.metric("m", 1.0, 0, meta={str(key): "" for key in range(33)}),
        experiment.metric("m", 1.0, 0, meta={"k" * 129: ""}),
        experiment.metric("m", 1.0, 0, meta={"k": "v" * 513}),
        experiment.event("annotate", annotation=""),
        experiment.event("annotate", annotation="x" * 16_001),
        experiment.event("annotate", annotation="x", meta={"k": "x" * 65_536}),
        experiment.event("error", error="x" * 8_001),
        experiment.event("nonsense"),
        {"messageId": "no data", "event": "syvain.v2.experiment.start"},
        {**experiment.event("start"), "data": {"experimentId": str(uuid.uuid4())}},
        experiment.metric("m", 2.0, 1),
    )
    assert codes(replies) == [
        None,
        "limit_exceeded",
        "invalid_event",
        "limit_exceeded",
        "invalid_event",
        *["limit_exceeded"] * 8,
        "event_not_known",
        "invalid_event",
        "experiment_mismatch",
        None,
    ]
    for reply in replies[1:-1]:
        assert reply["data"]["status"] in {400, 422}
        assert reply["data"]["retryable"] is False
    assert [value for _, _, value in client.points(experiment.id)["m", ()]] == [1.0, 2.0]
    assert client.record(experiment.id)["status"] == "created"


def test_values_that_are_no_numbers_cost_only_themselves_and_are_never_stored_as_others(client, experiment):
    """Python's json writes NaN and Infinity, which no strict parser takes; the finite ones still count."""
    values = [1.0, float("nan"), 2.0, float("inf"), float("-inf"), 3.0]
    events = [experiment.metric("m", value, step) for step, value in enumerate(values)]
    events += [experiment.event("annotate", annotation="n", meta={"v": float("nan")})]
    events += [experiment.metric("huge", 1.0, 0)]
    body = json.dumps(events).replace('"huge", "metricValue": 1.0', '"huge", "metricValue": 1e999')
    response = experiment.post(body.encode())
    assert response.status_code == 200
    assert codes(response.json()) == [
        *(
            None,
            "invalid_event",
            None,
            "invalid_event",
            "invalid_event",
            None,
            "invalid_event",
            "invalid_event",
        )
    ]
    assert "nan" in response.json()[1]["data"]["message"]
    assert client.points(experiment.id).keys() == {("m", ())}
    assert [value for _, _, value in client.points(experiment.id)["m", ()]] == [1.0, 2.0, 3.0]


def test_a_lone_surrogate_costs_only_its_event(client, experiment):
    events = [
        experiment.event("annotate", annotation="\ud800"),
        experiment.metric("m", 1.0, 0, meta={"a": "\udfff"}),
        experiment.event("\ud800"),
        experiment.event("start") | {"data": {"experimentId": "\ud800"}},
        experiment.metric("m", 1.0, 0),
    ]
    assert codes(experiment.post(json.dumps(events).encode()).json()) == [*["invalid_event"] * 4, None]


def test_nul_and_every_plane_survive_in_texts(client, experiment):
    text = "a\x00b é 🎲 \u2028"
    experiment.send(experiment.event("annotate", annotation=text, meta={text: text}))
    (note,) = client.data("query.annotations", experimentId=experiment.id)["annotations"]
    assert (note["annotation"], note["meta"]) == (text, {text: text})


def test_annotations_come_newest_first_and_keep_their_own_times(client, experiment):
    before = time.time_ns() // 1_000_000
    experiment.send(
        experiment.event("annotate", annotation="now"),
        experiment.event("annotate", annotation="then", timestampMs=1_000),
        experiment.event("annotate", annotation="later", timestampMs=2_000),
    )
    notes = client.data("query.annotations", experimentId=experiment.id)["annotations"]
    assert [note["annotation"] for note in notes] == ["now", "later", "then"]
    assert [note["createdAtMs"] for note in notes[1:]] == [2_000, 1_000]
    assert notes[0]["createdAtMs"] >= before


def test_annotations_beyond_what_an_answer_takes_are_refused_and_read_by_time(client, experiment):
    text, meta = "x" * 16_000, {"k": "y" * 65_000}
    for first in range(0, 900, 100):
        experiment.send(
            *[
                experiment.event("annotate", annotation=text, meta=meta, timestampMs=at_ms)
                for at_ms in range(first, first + 100)
            ]
        )
    reply = client.ask("query.annotations", experimentId=experiment.id)
    assert (reply["event"], reply["data"]["code"]) == ("syvain.v2.error", "limit_exceeded")
    assert reply["data"]["status"] == 422
    address = f"/api/v1/experiments/{experiment.id}/annotations"
    notes = client.http.get(address, params={"to": 99}, headers=client.authorization).json()["data"]
    assert [note["created_at_ms"] for note in notes["annotations"]] == list(range(99, -1, -1))


def test_what_is_sent_twice_is_stored_once_and_answered_alike(client, experiment):
    foreign = {"message_id": str(uuid.uuid4())}
    events = [
        experiment.event("start"),
        experiment.metric("m", 1.0, 0),
        experiment.event("annotate", annotation="own"),
        experiment.event("annotate", annotation="foreign", **foreign),
    ]
    first = experiment.send(*events, *events)
    second = experiment.send(*events)
    assert names(first) == names(second) * 2
    assert [reply["data"] for reply in first] == [reply["data"] for reply in second] * 2
    assert len(client.points(experiment.id)["m", ()]) == 1
    assert len(client.data("query.annotations", experimentId=experiment.id)["annotations"]) == 2


def test_an_event_that_was_refused_is_applied_when_it_comes_again_right(client, experiment):
    """The mark has passed it, yet its number was not applied."""
    wrong = experiment.metric("m", 1.0, -1)
    after = experiment.metric("m", 2.0, 1)
    experiment.send(wrong, after)
    right = {**wrong, "data": {**wrong["data"], "step": 0}}
    assert codes(experiment.send(right, after, right)) == [None, None, None]
    assert [value for _, _, value in client.points(experiment.id)["m", ()]] == [1.0, 2.0]


def test_the_same_id_in_another_experiment_is_another_event(client, experiment, slug):
    other = client.open(slug + "-other", sender=experiment.sender)
    for one in (experiment, other):
        one.send(
            one.metric("m", 1.0, 0, message_id=f"{experiment.sender}.7"),
            one.metric("m", 2.0, 1, message_id="x"),
        )
        assert len(client.points(one.id)["m", ()]) == 2


def test_a_batch_above_the_limit_is_refused_whole_with_the_limit_named(client, experiment):
    events = [experiment.metric("m", 1.0, step) for step in range(1001)]
    response = experiment.post(events)
    assert response.status_code == 400
    assert "at most 1,000 events, got 1,001" in response.json()["error"]["message"]
    assert client.points(experiment.id) == {}
    assert codes(experiment.send(*events[:1000])) == [None] * 1000
    assert len(client.points(experiment.id)["m", ()]) == 1000


def test_a_metric_takes_4096_partitions_and_refuses_the_next_for_its_event_alone(client, experiment):
    def num_refused():
        text = client.http.get("/metrics").text
        (count,) = re.findall(r"^slugline_metrics_partitions_refused (\S+)$", text, re.MULTILINE)
        return float(count)

    before = num_refused()
    for first in range(0, 4096, 1000):
        last = min(first + 1000, 4096)
        experiment.send(*[experiment.metric("m", 1.0, 0, meta={"k": str(key)}) for key in range(first, last)])
    replies = experiment.send(
        experiment.metric("m", 1.0, 0, meta={"k": "one too many"}),
        experiment.metric("m", 1.0, 1, meta={"k": "0"}),
        experiment.metric("other", 1.0, 0),
    )
    assert codes(replies) == ["series_limit_exceeded", None, None]
    assert num_refused() == before + 1, "and counted"
    (series,) = [
        one
        for one in client.data("query.catalog", experimentId=experiment.id)["series"]
        if one["seriesName"] == "m"
    ]
    assert len(series["metadata"][0]["values"]) == 4096


def test_gzip_bodies_are_taken_and_offered(client, experiment):
    body = gzip.compress(json.dumps([experiment.metric("m", 1.0, 0)]).encode())
    response = experiment.post(body, **{"content-encoding": "gzip"})
    assert (response.status_code, response.headers["accept-encoding"]) == (200, "gzip")
    assert len(client.points(experiment.id)["m", ()]) == 1


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"no gzip", "gzip", 400),
        (gzip.compress(b"[]", mtime=0)[:-4], "gzip", 400),
        (gzip.compress(b"[]", mtime=0) * 2, "gzip", 400),
        (b"[]", "br", 415),
        (b"", "identity", 400),
        (b"{}", "identity", 400),
        (b"[1]", "identity", 400),
        (b'[{"event":"x"}]', "identity", 400),
        (b'[{"messageId":1}]', "identity", 400),
        (b'[{"messageId":"\\ud800"}]', "identity", 400),
        (b"[" * 100_000, "identity", 400),
        (b"\xff\xfe", "identity", 400),
        (b'[{"messageId":"a"', "identity", 400),
    ],
)
def test_a_malformed_body_is_an_http_error_in_the_one_shape(experiment, body, encoding, status):
    response = experiment.post(body, **{"content-encoding": encoding})
    assert response.status_code == status
    assert response.json()["data"] is None
    assert response.json()["error"]["message"]


def test_a_gzip_bomb_is_refused_at_the_limit(experiment):
    bomb = gzip.compress(b" " * (128 * 2**20 + 1), compresslevel=1)
    assert len(bomb) < 2**20
    response = experiment.post(bomb, **{"content-encoding": "gzip"})
    assert response.status_code == 413
    assert "134,217,728" in response.json()["error"]["message"]


def test_replies_are_compressed_when_asked(experiment):
    events = [experiment.metric("m", 1.0, step) for step in range(100)]
    assert "content-encoding" not in experiment.post(events, **{"accept-encoding": "identity"}).headers
    response = experiment.post(events, **{"accept-encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"
    assert len(response.json()) == 100


def test_a_token_opens_its_own_experiment_and_nothing_else(client, experiment, slug):
    other = client.open(slug + "-other")
    event = [other.event("start")]
    for token in (experiment.token, client.key, "nonsense"):
        response = other.post(event, authorization=f"Bearer {token}")
        assert response.status_code == 401
        assert response.json()["error"]["details"] == "code=unauthorized"
    headers = {"authorization": f"Bearer {experiment.token}"}
    assert client.http.post("/api/v2/events", json=[], headers=headers).status_code == 401
    assert client.record(other.id)["status"] == "created"


def test_an_empty_batch_is_a_sign_of_life(client, experiment):
    before = client.record(experiment.id)
    response = experiment.post([])
    assert (response.status_code, response.json()) == (200, [])
    after = client.record(experiment.id)
    assert after["lastHeartbeatAtMs"] >= before["lastHeartbeatAtMs"]
    assert after == before | {"lastHeartbeatAtMs": after["lastHeartbeatAtMs"]}


def test_the_last_event_is_its_own_time_and_never_in_the_future(client, experiment):
    experiment.send(experiment.metric("m", 1.0, 0, timestampMs=5_000))
    assert client.record(experiment.id)["lastEventAtMs"] == 5_000
    experiment.send(experiment.metric("m", 1.0, 1, timestampMs=4_000))
    assert client.record(experiment.id)["lastEventAtMs"] == 5_000
    experiment.send(experiment.metric("m", 1.0, 2, timestampMs=2**53 - 1))
    assert client.record(experiment.id)["lastEventAtMs"] <= time.time_ns() // 1_000_000
