"""Batches of one experiment's events: from the body to what is to be stored, every limit checked.

Batches are nearly always right and nearly all metrics, so they are decoded at once, with the limits in the
types, and looked at in columns. A batch that is not right in any place is decoded again, event by event, and
each of its events is judged for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec

from infra.server.api.envelopes import check_size, convert, decode_answerable, with_double
from infra.server.limits import (
    MAX_MESSAGE_ID_BYTES,
    check,
    check_message_id,
    check_value,
    compact_object,
    partition,
)
from infra.server.refusals import Refused
from infra.server.store.commands import Annotate, Change, Record, Records, Revoke
from runtime.events import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.server.limits import Partition
    from infra.server.store.commands import Other

__all__ = ["Batch", "decode"]

_P = "syvain.v2.experiment."


@dataclass(slots=True)
class Batch:
    """What a body asks for. Every event is a point, another command or refused, at its place in the batch."""

    message_ids: Sequence[str]
    records: Records
    record_places: Sequence[int]
    others: list[Other] = field(default_factory=list)
    other_places: list[int] = field(default_factory=list)
    refused: dict[int, Refused] = field(default_factory=dict)


class _Metric(msgspec.Struct):
    experimentId: str  # noqa: N815 - the wire's names, here and below
    step: int
    metricName: str  # noqa: N815
    metricValue: float  # noqa: N815
    timestampMs: int | None = None  # noqa: N815
    meta: dict[str, str] = {}


class _Annotation(msgspec.Struct):
    experimentId: str  # noqa: N815
    annotation: str
    meta: dict[str, Any] = {}
    timestampMs: int | None = None  # noqa: N815


class _Error(msgspec.Struct):
    experimentId: str  # noqa: N815
    error: str
    meta: dict[str, Any] = {}
    timestampMs: int | None = None  # noqa: N815


class _Plain(msgspec.Struct):
    experimentId: str  # noqa: N815
    timestampMs: int | None = None  # noqa: N815


class _MetricEvent(msgspec.Struct, tag_field="event", tag=_P + "metric"):
    messageId: str  # noqa: N815
    data: _Metric


class _AnnotationEvent(msgspec.Struct, tag_field="event", tag=_P + "annotate"):
    messageId: str  # noqa: N815
    data: _Annotation


class _ErrorEvent(msgspec.Struct, tag_field="event", tag=_P + "error"):
    messageId: str  # noqa: N815
    data: _Error


class _StartEvent(msgspec.Struct, tag_field="event", tag=_P + "start"):
    messageId: str  # noqa: N815
    data: _Plain


class _DoneEvent(msgspec.Struct, tag_field="event", tag=_P + "done"):
    messageId: str  # noqa: N815
    data: _Plain


class _RevokeEvent(msgspec.Struct, tag_field="event", tag=_P + "tokenRevoke"):
    messageId: str  # noqa: N815
    data: _Plain


class _RightMetric(msgspec.Struct, gc=False):
    """A metric within every limit but its partition's, whose JSON is looked up as it stands."""

    experimentId: str  # noqa: N815
    step: Annotated[int, msgspec.Meta(ge=0, le=limits.MAX_STEP)]
    metricName: str  # noqa: N815
    metricValue: float  # noqa: N815
    timestampMs: Annotated[int, msgspec.Meta(ge=0, le=limits.MAX_TIMESTAMP_MS)] | None = None  # noqa: N815
    meta: msgspec.Raw = msgspec.Raw(b"{}")


class _RightMetricEvent(msgspec.Struct, tag_field="event", tag=_P + "metric", gc=False):
    messageId: str  # noqa: N815
    data: _RightMetric


_OtherEvent: TypeAlias = "_AnnotationEvent | _ErrorEvent | _StartEvent | _DoneEvent | _RevokeEvent"
_Event: TypeAlias = "_MetricEvent | _OtherEvent"
# mypy has no type for a union as a value
_OTHERS: Any = _AnnotationEvent | _ErrorEvent | _StartEvent | _DoneEvent | _RevokeEvent
_EVENTS: Any = _MetricEvent | _OTHERS
_right: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[_RightMetricEvent | _OTHERS])
_partition_metadata = msgspec.json.Decoder(dict[str, str])


def decode(body: bytes, experiment_id: str) -> Batch:
    """Return what a body asks for.

    Raises:
        Refused: The body is no array of 0 to 1,000 objects that can be answered one by one.
    """
    try:
        events = _right.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _one_by_one(decode_answerable(body), experiment_id)
    check_size(events)
    batch = _columns(events, experiment_id)
    return _one_by_one(decode_answerable(body), experiment_id) if batch is None else batch


def _columns(events: list[Any], experiment_id: str) -> Batch | None:
    """Return a batch in which every event is right; None where one may not be."""
    message_ids = [event.messageId for event in events]
    named = [event.data.experimentId for event in events]
    if named.count(experiment_id) != len(named) or not _short(message_ids):
        return None
    metrics = [event for event in events if type(event) is _RightMetricEvent]
    try:
        if len(metrics) == len(events):
            return Batch(message_ids, _records(metrics, message_ids), range(len(events)))
        places = [place for place, event in enumerate(events) if type(event) is _RightMetricEvent]
        records = _records(metrics, [message_ids[place] for place in places])
        others = [place for place, event in enumerate(events) if type(event) is not _RightMetricEvent]
        for place in others:
            _check_common(events[place], experiment_id)
        return Batch(message_ids, records, places, [_other(events[place]) for place in others], others)
    except Refused:
        return None


def _short(message_ids: list[str]) -> bool:
    """Whether every id is within its limit for certain: characters are bytes where all are ASCII."""
    if not message_ids:
        return True
    return (
        "".join(message_ids).isascii()
        and max(map(len, message_ids)) <= MAX_MESSAGE_ID_BYTES
        and "" not in message_ids
    )


def _records(metrics: list[_RightMetricEvent], message_ids: Sequence[str]) -> Records:
    """Return points as columns.

    Raises:
        Refused: A partition passes a limit.
    """
    points = [event.data for event in metrics]
    keys = [(point.metricName, bytes(point.meta)) for point in points]
    distinct = {key: _partition(*key) for key in dict.fromkeys(keys)}
    # One partition may be written in several ways: its keys in another order.
    partitions = {(one.name, one.hash): one for one in distinct.values()}
    places = {key: place for place, key in enumerate(partitions)}
    of_key = {key: places[one.name, one.hash] for key, one in distinct.items()}
    return Records(
        message_ids=message_ids,
        partitions=list(partitions.values()),
        which=[of_key[key] for key in keys],
        steps=[point.step for point in points],
        timestamps_ms=[point.timestampMs for point in points],
        values=[point.metricValue for point in points],
    )


@lru_cache(maxsize=16_384)
def _partition(name: str, metadata: bytes) -> Partition:
    """Return the checked partition of a metric name and its metadata as JSON.

    Raises:
        Refused: The name or the metadata passes a limit, or is no map of texts.
    """
    try:
        items = _partition_metadata.decode(metadata)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("invalid_event", str(error)) from error
    return partition(name, tuple(items.items()))


def _one_by_one(events: list[dict[str, Any]], experiment_id: str) -> Batch:
    """Judge each event for itself."""
    records: list[Record] = []
    batch = Batch([event["messageId"] for event in events], Records.of(()), [])
    record_places = []
    for place, event in enumerate(events):
        try:
            command = _command(event, experiment_id)
        except Refused as refusal:
            batch.refused[place] = refusal
            continue
        if isinstance(command, Record):
            records.append(command)
            record_places.append(place)
        else:
            batch.others.append(command)
            batch.other_places.append(place)
    batch.records, batch.record_places = Records.of(records), record_places
    return batch


def _command(event: dict[str, Any], experiment_id: str) -> Record | Other:
    converted = _converted(event)
    _check_common(converted, experiment_id)
    return _record(converted) if isinstance(converted, _MetricEvent) else _other(converted)


def _converted(event: dict[str, Any]) -> _Event:
    with_double(event.get("data"), "metricValue")
    try:
        converted: _Event = convert(event, _EVENTS)
    except msgspec.ValidationError as error:
        code = "event_not_known" if "$.event" in str(error) else "invalid_event"
        raise Refused(code, str(error)) from error
    return converted


def _check_common(event: _Event, experiment_id: str) -> None:
    """What holds of every event."""
    check_message_id(event.messageId)
    if event.data.experimentId != experiment_id:
        raise Refused("experiment_mismatch", "experimentId must be the one in the address")
    if event.data.timestampMs is not None:
        check(limits.check_timestamp_ms, event.data.timestampMs)


def _record(event: _MetricEvent) -> Record:
    """Return a point, every limit checked."""
    data = event.data
    check(limits.check_step, data.step)
    check_value(data.metricValue)
    where = partition(data.metricName, tuple(data.meta.items()))
    return Record(event.messageId, where, data.step, data.timestampMs, data.metricValue)


def _other(event: _OtherEvent) -> Other:
    """Return what is no point, every limit checked."""
    data, at_ms = event.data, event.data.timestampMs
    if isinstance(data, _Annotation):
        check(limits.check_annotation, data.annotation)
        return Annotate(event.messageId, data.annotation, compact_object(data.meta, field="meta"), at_ms)
    if isinstance(data, _Error):
        check(limits.check_error, data.error)
        meta = compact_object(data.meta, field="meta")
        return Change(event.messageId, "error", at_ms, data.error, meta)
    if isinstance(event, _RevokeEvent):
        return Revoke(event.messageId)
    return Change(event.messageId, "start" if isinstance(event, _StartEvent) else "done", at_ms)
