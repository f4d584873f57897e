"""POST /api/v2/experiments/{id}/events: what a run writes to its experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request, Response

from infra.server.api import batches, event_schemas
from infra.server.api.body import OFFER_GZIP, aside
from infra.server.api.context import GuardedRoute, needs, session_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.envelopes import Reply, encode_mixed
from infra.server.api.prometheus import measures_of
from infra.server.refusals import Refused
from infra.server.store.commands import Annotate, Change, annotation_uid

if TYPE_CHECKING:
    from infra.server.store.commands import Other

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute)
_NAMES: dict[str, Literal["started", "done", "errored"]] = {
    "start": "started",
    "done": "done",
    "error": "errored",
}


@router.post("/api/v2/experiments/{experiment_id}/events")
@needs("ingest")
@describe(
    Operation(
        reply=event_schemas.replies(event_schemas.EXPERIMENT_EVENTS),
        body=event_schemas.batch(event_schemas.EXPERIMENT_EVENTS),
        codes=("batch_too_large",),
        examples=event_schemas.batch_examples(event_schemas.EXPERIMENT_EVENTS),
    )
)
async def experiment_events(experiment_id: str, request: Request) -> Response:
    """Apply a batch: each event once, in order, each answered for itself. An empty one is a sign of life."""
    session = await session_of(request, experiment_id)
    batch = await aside(request, lambda body: batches.decode(body, experiment_id))
    store = store_of(request)
    refused, refused_others = await store.write(
        lambda connection: store.ingest.apply_columns(
            connection, session, batch.records, batch.others, now_ms=store.clock_ms()
        )
    )
    replies: dict[int, Reply | Refused] = {**batch.refused}
    replies.update((batch.record_places[at], refusal) for at, refusal in refused.items())
    for at, (place, other) in enumerate(zip(batch.other_places, batch.others, strict=True)):
        replies[place] = refused_others.get(at) or _reply(experiment_id, other)
    measures_of(request).events(
        len(batch.message_ids), (reply for reply in replies.values() if isinstance(reply, Refused))
    )
    body = encode_mixed(batch.message_ids, "experiment.metricRecorded", replies)
    return Response(body, headers=OFFER_GZIP, media_type="application/json")


def _reply(experiment_id: str, command: Other) -> Reply:
    if isinstance(command, Annotate):
        return "experiment.annotated", {"annotationId": annotation_uid(experiment_id, command.message_id)}
    if isinstance(command, Change):
        return f"experiment.{_NAMES[command.kind]}", {}
    return "experiment.tokenRevoked", {}
