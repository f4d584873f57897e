"""Bodies as batches: decoded at once or event by event, the same is asked for."""

import contextlib
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.server.api import batches
from infra.server.refusals import Refused
from infra.server.store.commands import Annotate, Change

ID = "e"


def metric(message_id="i", **more):
    data = {"experimentId": ID, "metricName": "m", "metricValue": 1.5, "step": 3, **more}
    return {"messageId": message_id, "event": "syvain.v2.experiment.metric", "data": data}


def event(name, message_id="i", **more):
    data = {"experimentId": ID, **more}
    return {"messageId": message_id, "event": f"syvain.v2.experiment.{name}", "data": data}


changes = st.sampled_from(
    [
        {},
        {"step": -1},
        {"step": 2**53 - 1},
        {"step": None},
        {"step": 1.0},
        {"metricValue": 7},
        {"metricValue": 10**20},
        {"metricValue": -(10**400)},
        {"metricValue": True},
        {"metricName": ""},
        {"metricName": "a b"},
        {"timestampMs": 2**53},
        {"timestampMs": None},
        {"meta": {"a": "1", "b": "é\x00"}},
        {"meta": {"a": 1}},
        {"meta": []},
        {"meta": {"k" * 129: ""}},
        {"experimentId": "other"},
        {"extra": [1, {"x": None}]},
        {"extra": 2**64},
    ]
)
message_ids = st.sampled_from(["i", "", "é", "x" * 256, "x" * 257, "é" * 128, "é" * 129, 'quo"te'])
events = st.one_of(
    st.builds(lambda message_id, change: metric(message_id, **change), message_ids, changes),
    st.builds(lambda message_id: event("annotate", message_id, annotation="note"), message_ids),
    st.just(event("annotate", annotation="")),
    st.just(event("done", timestampMs=4)),
    st.just(event("tokenRevoke")),
    st.just(event("nonsense")),
)


def asked(batch):
    """Everything that a batch says, whatever the columns look like."""
    records = batch.records
    points = [
        (place, message_id, records.partitions[which], step, at_ms, value)
        for place, message_id, which, step, at_ms, value in zip(
            batch.record_places,
            records.message_ids,
            records.which,
            records.steps,
            records.timestamps_ms,
            records.values,
            strict=True,
        )
    ]
    refused = {place: refusal.code for place, refusal in batch.refused.items()}
    return list(batch.message_ids), points, batch.others, list(batch.other_places), refused


@given(st.lists(events, max_size=5))
def test_the_quick_way_and_the_careful_way_say_the_same(table):
    body = json.dumps(table).encode()
    careful = batches._one_by_one(json.loads(body), ID)
    assert asked(batches.decode(body, ID)) == asked(careful)


@pytest.mark.parametrize("extra", [2**64, "\ud800", [[1e400]], None])
def test_what_stands_in_a_field_that_nobody_reads_costs_nothing_either_way(extra):
    table = [metric() | {"data": metric()["data"] | {"extra": extra}}]
    batch = batches.decode(json.dumps(table).encode(), ID)
    assert batch.refused == {}
    assert batches._one_by_one(json.loads(json.dumps(table)), ID).refused == {}


def test_a_right_batch_is_not_looked_at_event_by_event(monkeypatch):
    monkeypatch.setattr(batches, "_one_by_one", None)
    table = [
        event("start"),
        metric(meta={"a": "1"}),
        metric(),
        event("annotate", annotation="n", meta={"s": 1}),
    ]
    batch = batches.decode(orjson.dumps(table), ID)
    assert list(batch.record_places) == [1, 2]
    assert [type(one) for one in batch.others] == [Change, Annotate]


def test_one_partition_written_in_two_ways_is_one():
    table = [metric(meta={"a": "1", "b": "2"}), metric(meta={"b": "2", "a": "1"}), metric()]
    batch = batches.decode(orjson.dumps(table), ID)
    assert batch.records.which == [0, 0, 1]
    assert len(batch.records.partitions) == 2


@pytest.mark.parametrize("meta", ['{"a":"\\ud800"}', '{"a":"1","a":"2"}', '{"a": "1" }', '{"a":NaN}'])
def test_metadata_that_is_looked_up_as_it_stands_is_still_judged(meta):
    body = orjson.dumps([metric()]).replace(b'"step":3', b'"step":3,"meta":' + meta.encode())
    batch = batches.decode(body, ID)
    careful = batches._one_by_one(json.loads(body), ID)
    assert asked(batch) == asked(careful)


def test_a_number_of_too_many_digits_costs_its_own_event_alone():
    body = json.dumps([metric("a"), metric("b", step=1), metric("c", metricValue=2), event("annotate", "d")])
    body = body.replace('"step": 1', f'"step": {"1" * 5000}').replace(
        '"metricValue": 2', f'"metricValue": -{"1" * 5000}'
    )
    batch = batches.decode(body.encode(), ID)
    assert list(batch.record_places) == [0]
    assert set(batch.refused) == {1, 2, 3}


@pytest.mark.parametrize("depth", range(100, 1400, 13))
def test_however_deep_an_event_nests_it_is_taken_or_refused(depth):
    """Near the interpreter's own bound what is read can be too deep to be shown in the refusal."""
    body = json.dumps([event("annotate", annotation="n", meta={"a": 0})])
    for deep in (depth + more for more in range(13)):
        nested = body.replace('"a": 0', f'"a": {"[" * deep}{"]" * deep}').encode()
        with contextlib.suppress(Refused):
            batch = batches.decode(nested, ID)
            assert deep <= 128 if not batch.refused else batch.refused[0].status == 422
