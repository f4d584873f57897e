"""POST /api/v1/experiments/{id}/ingest: a batch of metrics, each once by the id that its client gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from infra.server.api.context import GuardedRoute, needs, session_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.envelopes import with_double
from infra.server.api.v1.experiments import Time
from infra.server.api.v1.requests import answer, body_of, fitting
from infra.server.limits import check_value, partition
from infra.server.refusals import Refused
from infra.server.store import ingestion_keys
from infra.server.store.commands import Record
from infra.server.store.points import NO_STEP
from runtime.events import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/experiments/{experiment_id}", route_class=GuardedRoute)
_ID_PREFIX = "v1:"
"""Keeps these ids apart from the message ids of the event protocol."""


class IngestMetric(msgspec.Struct):
    """One point."""

    client_event_id: Annotated[str, Meta(min_length=1, max_length=200)]
    name: Annotated[str, Meta(min_length=1, max_length=256, pattern="^[ -~]*$")]
    value: float
    step: Annotated[int, Meta(ge=0, le=limits.MAX_STEP)] | None = None
    metadata: dict[str, str] = {}
    timestamp_ms: Time | None = None


class LooseBatch(msgspec.Struct):
    """A batch whose metrics are looked at one by one."""

    data: Annotated[list[Any], Meta(max_length=limits.MAX_BATCH_EVENTS)]


class IngestBatch(msgspec.Struct):
    """A batch, as it is described."""

    data: Annotated[list[IngestMetric], Meta(max_length=limits.MAX_BATCH_EVENTS)]


class Taken(msgspec.Struct):
    """The answer that clients expect."""

    ok: Literal[True]
    mode: Literal["queued"]


@router.post("/ingest")
@needs("ingest")
@describe(
    Operation(
        data=Taken,
        body=IngestBatch,
        codes=("limit_exceeded", "invalid_event", "series_limit_exceeded"),
        examples={
            "a point": {"data": [{"client_event_id": "e-1", "name": "loss", "value": 0.5, "step": 1}]},
        },
    )
)
async def ingest(request: Request, experiment_id: str) -> Response:
    """Store metrics. The answer says `queued`, as clients expect; what it acknowledges is durable.

    A metric that is refused does not keep the others from being stored: the answer is then the refusal of the
    first such, with its `index` and how many were `applied` and `refused`. Sending the batch again is safe.
    """
    session, store = await session_of(request, experiment_id), store_of(request)
    checked = [_checked(item) for item in (await body_of(request, LooseBatch)).data]
    commands = [one for one in checked if not isinstance(one, Refused)]

    def work(connection: Connection) -> list[Refused | None]:
        now_ms = store.clock_ms()
        ingestion_keys.used(connection, session.id, now_ms=now_ms)
        return store.ingest.apply(connection, session, commands, now_ms=now_ms)

    outcomes = iter(await store.write(work))
    _raise_first([one if isinstance(one, Refused) else next(outcomes) for one in checked])
    return answer(b'{"data":{"ok":true,"mode":"queued"},"error":null}')


def _checked(item: Any) -> Record | Refused:
    with_double(item, "value")
    try:
        metric = fitting(item, IngestMetric)
        check_value(metric.value)
        where = partition(metric.name, tuple(metric.metadata.items()))
    except Refused as refusal:
        return refusal
    message_id = _ID_PREFIX + metric.client_event_id
    step = NO_STEP if metric.step is None else metric.step
    return Record(message_id, where, step, metric.timestamp_ms, metric.value)


def _raise_first(outcomes: Sequence[Refused | None]) -> None:
    refused = [(index, one) for index, one in enumerate(outcomes) if one is not None]
    if refused:
        index, first = refused[0]
        raise Refused(
            first.code,
            f"data[{index}]: {first.message}",
            details={
                **first.details,
                "index": index,
                "applied": len(outcomes) - len(refused),
                "refused": len(refused),
            },
        )
