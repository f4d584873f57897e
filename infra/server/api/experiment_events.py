"""POST /api/v2/experiments/{id}/events: what a run writes to its experiment."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response

from infra.server.api.body import OFFER_GZIP, read_body
from infra.server.api.context import GuardedRoute, needs, session_of, store_of
from infra.server.api.envelopes import Reply, convert, decode_batch, encode_replies
from infra.server.limits import check, check_message_id, check_value, compact_object, partition
from infra.server.refusals import Refused
from infra.server.store.commands import Annotate, Change, Command, Record, Revoke, annotation_uid
from runtime.events import limits

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute)
_P = "syvain.v2.experiment."


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


_Event = _MetricEvent | _AnnotationEvent | _ErrorEvent | _StartEvent | _DoneEvent | _RevokeEvent
_EVENTS: Any = _Event  # mypy has no type for a union as a value
_decoder: msgspec.json.Decoder[list[_Event]] = msgspec.json.Decoder(list[_EVENTS])
_NAMES: dict[str, Literal["started", "done", "errored"]] = {
    "start": "started",
    "done": "done",
    "error": "errored",
}


@router.post("/api/v2/experiments/{experiment_id}/events")
@needs("ingest")
async def experiment_events(experiment_id: str, request: Request) -> Response:
    """Apply a batch: each event once, in order, each answered for itself. An empty one is a sign of life."""
    session = await session_of(request, experiment_id)
    events = decode_batch(await read_body(request), _decoder)
    checked = [_checked(event, experiment_id) for event in events]
    commands = [command for command in checked if not isinstance(command, Refused)]
    store = store_of(request)
    outcomes = iter(
        await store.write(
            lambda connection: store.ingest.apply(connection, session, commands, now_ms=store.clock_ms())
        )
    )
    replies = [
        command if isinstance(command, Refused) else next(outcomes) or _reply(experiment_id, command)
        for command in checked
    ]
    body = encode_replies([_message_id(event) for event in events], replies)
    return Response(body, headers=OFFER_GZIP, media_type="application/json")


def _message_id(event: _Event | dict[str, Any]) -> str:
    return str(event["messageId"]) if isinstance(event, dict) else event.messageId


def _checked(event: _Event | dict[str, Any], experiment_id: str) -> Command | Refused:
    try:
        if isinstance(event, dict):
            event = _converted(event)
        _check_common(event, experiment_id)
        return _command(event)
    except Refused as refusal:
        return refusal


def _check_common(event: _Event, experiment_id: str) -> None:
    """What holds of every event."""
    check_message_id(event.messageId)
    if event.data.experimentId != experiment_id:
        raise Refused("experiment_mismatch", "experimentId must be the one in the address")
    if event.data.timestampMs is not None:
        check(limits.check_timestamp_ms, event.data.timestampMs)


def _converted(event: dict[str, Any]) -> _Event:
    try:
        converted: _Event = convert(event, _EVENTS)
    except msgspec.ValidationError as error:
        code = "event_not_known" if "$.event" in str(error) else "invalid_event"
        raise Refused(code, str(error)) from error
    return converted


def _command(event: _Event) -> Command:
    """Return what an event asks for, every limit checked."""
    data, at_ms = event.data, event.data.timestampMs
    if isinstance(data, _Metric):
        check(limits.check_step, data.step)
        check_value(data.metricValue)
        where = partition(data.metricName, tuple(data.meta.items()))
        return Record(event.messageId, where, data.step, at_ms, data.metricValue)
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


def _reply(experiment_id: str, command: Command) -> Reply:
    if isinstance(command, Record):
        return "experiment.metricRecorded", {}
    if isinstance(command, Annotate):
        return "experiment.annotated", {"annotationId": annotation_uid(experiment_id, command.message_id)}
    if isinstance(command, Change):
        return f"experiment.{_NAMES[command.kind]}", {}
    return "experiment.tokenRevoked", {}
