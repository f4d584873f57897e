"""The REST API's queries."""

import json
import uuid

import pytest

from tests.support.rest import Rest

STEPS = {"axis": "step", "direction": "asc"}


@pytest.fixture
def rest(client):
    return Rest(client)


@pytest.fixture
def written(client, slug):
    """An experiment with two partitions of a metric and one of another."""
    experiment = client.open(slug)
    experiment.send(
        *(
            experiment.metric(
                "loss", 10.0 * step + rank, step, timestampMs=9000 - step, meta={"rank": str(rank)}
            )
            for step in (0, 2, 1)
            for rank in (0, 1)
        ),
        experiment.metric("speed", 3.0, 5, timestampMs=1),
    )
    return experiment


def query(rest, *selections, order=STEPS, **more):
    return rest.ask("POST", "/query/series", {"series": list(selections), "order": order, **more})


def lines(rest, *selections, order=STEPS):
    body = {"series": list(selections), "order": order, "stream": True}
    response = rest.send("POST", "/query/series", body)
    assert response.headers["content-type"].startswith("application/vnd.syvain.metric-series+ndjson")
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_batch_is_one_exact_metadata_map_in_the_order_asked_for(rest, written):
    found = query(rest, {"experimentId": written.id})
    assert [(one["metricName"], one["metadata"]) for one in found] == [
        ("loss", {"rank": "0"}),
        ("loss", {"rank": "1"}),
        ("speed", {}),
    ]
    assert found[1]["data"] == {
        "steps": [0, 1, 2],
        "timestamp": [9000, 8999, 8998],
        "value": [1.0, 11.0, 21.0],
    }
    assert all(one["experimentId"] == written.id for one in found)
    assert len({one["metadataHash"] for one in found}) == 3
    assert all(one["metadataHash"] for one in found)


@pytest.mark.parametrize(
    ("axis", "direction", "values"),
    [
        ("step", "asc", [0.0, 10.0, 20.0]),
        ("step", "desc", [20.0, 10.0, 0.0]),
        ("timestamp", "asc", [20.0, 10.0, 0.0]),
        ("timestamp", "desc", [0.0, 10.0, 20.0]),
    ],
)
def test_the_order_is_an_axis_and_a_direction(rest, written, axis, direction, values):
    selection = {"experimentId": written.id, "metadataFilter": [{"key": "rank", "value": "0"}]}
    (batch,) = query(rest, selection, order={"axis": axis, "direction": direction})
    assert batch["data"]["value"] == values


def test_filters_ask_for_a_key_or_for_a_value(rest, written):
    def ranks(*conditions):
        found = query(rest, {"experimentId": written.id, "metadataFilter": list(conditions)})
        return [one["metadata"].get("rank") for one in found]

    assert ranks() == ["0", "1", None]
    assert ranks({"key": "rank"}) == ["0", "1"]
    assert ranks({"key": "rank", "value": None}) == ["0", "1"]
    assert ranks({"key": "rank", "value": "1"}) == ["1"]
    assert ranks({"key": "rank", "value": "1"}, {"key": "host"}) == []


def test_what_several_selections_take_comes_once(rest, written):
    found = query(
        rest,
        {"experimentId": written.id, "metricName": "loss", "metadataFilter": [{"key": "rank", "value": "1"}]},
        {"experimentId": written.id, "metricName": "loss"},
        {"experimentId": written.id, "metricName": "nothing"},
    )
    assert [one["metadata"]["rank"] for one in found] == ["1", "0"]


def test_a_stream_ends_with_a_line_that_counts_it_and_says_the_same(rest, written):
    *batches, last = lines(rest, {"experimentId": written.id})
    assert batches == query(rest, {"experimentId": written.id})
    assert last == {"kind": "complete", "batchCount": 3, "rowCount": 7}
    assert lines(rest, {"experimentId": written.id, "metricName": "nothing"}) == [
        {"kind": "complete", "batchCount": 0, "rowCount": 0}
    ]


def test_a_long_series_comes_in_batches_that_follow_one_another(rest, client, slug):
    experiment = client.open(slug)
    for first in range(0, 20_000, 1000):
        experiment.send(
            *(experiment.metric("loss", float(step), step) for step in range(first, first + 1000))
        )
    *batches, last = lines(rest, {"experimentId": experiment.id}, order={"axis": "step", "direction": "desc"})
    assert (last["batchCount"], last["rowCount"]) == (len(batches), 20_000)
    assert len(batches) > 1
    assert [step for batch in batches for step in batch["data"]["steps"]] == list(range(19_999, -1, -1))


def test_both_copies_of_a_repeated_step_come_unless_the_newest_is_asked_for(rest, client, slug):
    first = client.open(slug)
    first.send(first.event("start"), *(first.metric("loss", 1.0, step) for step in range(4)))
    second = client.open(slug)
    second.send(second.event("start"), *(second.metric("loss", 2.0, step) for step in range(2, 6)))
    (both,) = query(rest, {"experimentId": first.id})
    assert both["data"]["steps"] == [0, 1, 2, 2, 3, 3, 4, 5]
    (newest,) = query(rest, {"experimentId": first.id}, copies="newest")
    assert list(zip(newest["data"]["steps"], newest["data"]["value"], strict=True)) == [
        (0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0), (5, 2.0),
    ]  # fmt: skip


def test_the_catalog_names_metrics_with_their_metadata(rest, written, client, slug):
    other = client.open(slug + "-empty")
    found = rest.ask("POST", "/query/metric-catalog", {"experimentIds": [other.id, written.id]})
    assert found == [
        {
            "experimentId": written.id,
            "metricName": "loss",
            "metadataKeys": ["rank"],
            "metadata": {"rank": ["0", "1"]},
        },
        {"experimentId": written.id, "metricName": "speed", "metadataKeys": [], "metadata": {}},
    ]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("metric-catalog", {"experimentIds": []}, (422, "invalid_request")),
        ("metric-catalog", {"experimentIds": ["x"] * 65}, (422, "invalid_request")),
        ("metric-catalog", {"experimentIds": [str(uuid.uuid4())]}, (404, "experiment_not_found")),
        ("series", {"series": [], "order": STEPS}, (422, "invalid_request")),
        ("series", {"series": [{"experimentId": "x"}] * 65, "order": STEPS}, (422, "invalid_request")),
        ("series", {"series": [{"experimentId": "x"}]}, (422, "invalid_request")),
        ("series", {"series": [{"experimentId": "x"}], "order": STEPS}, (404, "experiment_not_found")),
        (
            "series",
            {"series": [{"experimentId": "x"}], "order": STEPS, "stream": True},
            (404, "experiment_not_found"),
        ),
        (
            "series",
            {"series": [{"experimentId": "x"}], "order": {"axis": "time", "direction": "asc"}},
            (422, "invalid_request"),
        ),
    ],
)
def test_a_query_that_does_not_fit_is_refused_before_anything_is_sent(rest, path, body, expected):
    assert rest.refused("POST", f"/query/{path}", body) == expected
