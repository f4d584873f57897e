"""The series stream: counts that agree, one summary a name, done last."""

import json
import uuid
from collections import Counter

import pytest

DATA = "syvain.v2.query.series.data"
SUMMARY = "syvain.v2.query.experimentseries.series"
DONE = "syvain.v2.query.experimentseries.done"


def check(lines, experiment_id, requested=None):
    """The rules that every reader enforces. Returns the summaries by name."""
    assert {line["correlationId"] for line in lines} == {"series"}
    assert [line["event"] for line in lines].count(DONE) == 1
    assert lines[-1]["event"] == DONE
    batches: Counter[str] = Counter()
    points: Counter[str] = Counter()
    summaries = {}
    for line in lines[:-1]:
        data = line["data"]
        name = data["seriesName"]
        assert name not in summaries, "nothing of a name follows its summary"
        if line["event"] == SUMMARY:
            assert (data["batches"], data["points"]) == (batches[name], points[name])
            summaries[name] = data["points"]
            continue
        assert line["event"] == DATA
        assert data["experimentId"] == experiment_id
        columns = data["data"]
        assert len(columns["step"]) == len(columns["timestampMs"]) == len(columns["value"]) > 0
        batches[name] += 1
        points[name] += len(columns["step"])
    assert lines[-1]["data"] == {
        "series": len(summaries),
        "batches": batches.total(),
        "points": points.total(),
    }
    if requested is not None:
        assert set(summaries) == set(requested)
    return summaries


@pytest.fixture
def filled(experiment):
    experiment.send(
        *[
            experiment.metric(name, float(step), step, timestampMs=100 - step, meta=meta)
            for name in ("a", "b")
            for meta in ({"split": "train"}, {"split": "valid", "rank": "0"})
            for step in (3, 1, 2)
        ]
    )
    return experiment


def test_all_series_come_when_none_is_named(client, filled):
    assert check(client.stream(filled.id), filled.id) == {"a": 6, "b": 6}


def test_every_name_asked_for_has_one_summary_also_when_it_has_no_points(client, filled):
    names = ["nothing", "b", "nothing", "a"]
    lines = client.stream(filled.id, seriesNames=names, filter=[])
    assert check(lines, filled.id, names) == {"a": 6, "b": 6, "nothing": 0}


def test_filters_are_anded_and_a_key_without_a_value_must_exist(client, filled):
    def read(*conditions):
        lines = client.stream(filled.id, seriesNames=["a"], filter=list(conditions))
        check(lines, filled.id, ["a"])
        return [line["data"]["metadata"] for line in lines if line["event"] == DATA]

    train, valid = {"split": "train"}, {"rank": "0", "split": "valid"}
    assert read() == [train, valid]
    assert read({"metadataKey": "split", "metadataValue": "train"}) == [train]
    assert read({"metadataKey": "rank"}) == [valid]
    assert read({"metadataKey": "rank"}, {"metadataKey": "split", "metadataValue": "train"}) == []
    assert read({"metadataKey": "split", "metadataValue": ""}) == []


def test_points_come_in_the_order_of_the_axis(client, filled):
    by_step = client.points(filled.id, seriesNames=["a"])["a", (("split", "train"),)]
    by_time = client.points(filled.id, seriesNames=["a"], xAxis="timestamp")["a", (("split", "train"),)]
    assert [step for step, _, _ in by_step] == [1, 2, 3]
    assert [step for step, _, _ in by_time] == [3, 2, 1]


def test_a_long_partition_comes_in_several_frames_in_order(client, experiment):
    for first in range(0, 9_000, 1000):
        experiment.send(*[experiment.metric("m", 1.0, step) for step in range(first, first + 1000)])
    lines = client.stream(experiment.id, seriesNames=["m"])
    assert check(lines, experiment.id) == {"m": 9_000}
    assert sum(line["event"] == DATA for line in lines) > 1
    assert [step for step, _, _ in client.points(experiment.id)["m", ()]] == list(range(9_000))


def test_an_experiment_that_is_not_there_is_one_error_line(client):
    (line,) = client.stream(str(uuid.uuid4()))
    assert (line["event"], line["data"]["code"]) == ("syvain.v2.error", "experiment_not_found")
    assert (line["correlationId"], line["data"]["status"]) == ("series", 404)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"messageId": "a", "event": "syvain.v2.query.experimentseries"},
        {"messageId": "a", "event": "other", "data": {"experimentId": "a"}},
        {
            "messageId": "a",
            "event": "syvain.v2.query.experimentseries",
            "data": {"experimentId": "a", "xAxis": "x"},
        },
        {
            "messageId": "a",
            "event": "syvain.v2.query.experimentseries",
            "data": {"experimentId": "a", "seriesNames": ["x"] * 1001},
        },
    ],
)
def test_a_malformed_query_is_an_http_error(client, body):
    response = client.http.post("/api/v2/query/series", json=body, headers=client.authorization)
    assert response.status_code == 400
    assert response.json()["data"] is None


def test_the_stream_wants_a_key(client, experiment):
    body = {
        "messageId": "a",
        "event": "syvain.v2.query.experimentseries",
        "data": {"experimentId": experiment.id},
    }
    assert client.http.post("/api/v2/query/series", json=body).status_code == 401
    token = {"authorization": f"Bearer {experiment.token}"}
    assert client.http.post("/api/v2/query/series", json=body, headers=token).status_code == 401


def test_a_query_that_no_strict_json_holds_is_refused(client):
    query = {
        "messageId": "s",
        "event": "syvain.v2.query.experimentseries",
        "data": {"experimentId": "\ud800"},
    }
    response = client.http.post(
        "/api/v2/query/series", content=json.dumps(query), headers=client.authorization
    )
    assert response.status_code == 422
    assert "invalid_event" in response.json()["error"]["details"]
