"""Annotations: listed by time, and made by a run or by whoever may write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.v1.experiments import Limit, Time
from infra.server.api.v1.model import Annotation, annotation
from infra.server.api.v1.requests import body_of, change, look, query_of
from infra.server.limits import check, compact_object
from infra.server.store import annotations as rows
from infra.server.store import experiments, ingestion_keys, sessions
from runtime.events import limits

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.server.api.context import Principal

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/experiments/{experiment_id}", route_class=GuardedRoute)
_CODES = ("experiment_not_found",)


class TimeSpan(msgspec.Struct, rename={"first": "from", "last": "to"}):
    """Which annotations are wanted."""

    first: Time = 0
    last: Time = limits.MAX_TIMESTAMP_MS
    limit: Limit = 1000


class NewAnnotation(msgspec.Struct):
    """An annotation to make."""

    annotation: Annotated[str, Meta(min_length=1, max_length=limits.MAX_ANNOTATION_UNITS)]
    metadata: dict[str, Any] = {}
    step: Annotated[int, Meta(ge=0, le=limits.MAX_STEP)] | None = None
    timestamp_ms: Time | None = None


class OneAnnotation(msgspec.Struct):
    """One annotation."""

    annotation: Annotation


class Annotations(msgspec.Struct):
    """Some annotations."""

    annotations: list[Annotation]


@router.get("/annotations")
@needs("read")
@describe(Operation(data=Annotations, query=TimeSpan, codes=_CODES))
async def list_annotations(request: Request, experiment_id: str) -> Response:
    """List annotations, the newest first; `from` and `to` bound their time and are included."""
    span = query_of(request, TimeSpan)
    organisation = principal_of(request).organisation

    def read(connection: Connection) -> Annotations:
        experiment = experiments.find(connection, organisation.id, experiment_id)
        found = rows.between(
            connection, experiment.id, first_ms=span.first, last_ms=span.last, limit=span.limit
        )
        return Annotations([annotation(row, experiment_id) for row in found])

    return await look(request, read)


@router.post("/annotations")
@needs("ingest")
@describe(
    Operation(
        repeatable=True,
        data=OneAnnotation,
        body=NewAnnotation,
        codes=(*_CODES, "limit_exceeded", "invalid_event"),
        examples={
            "a note": {"annotation": "learning rate halved by hand", "metadata": {"lr": 0.05}, "step": 400}
        },
    )
)
async def create_annotation(request: Request, experiment_id: str) -> Response:
    """Annotate an experiment, with its ingestion key or with an organisation's.

    `step` becomes the metadata's, `timestamp_ms` is the time of arrival unless it is given.
    """
    new = await body_of(request, NewAnnotation)
    check(limits.check_annotation, new.annotation)
    meta = new.metadata if new.step is None else {**new.metadata, "step": new.step}
    text = compact_object(meta, field="metadata")
    principal, store = principal_of(request), store_of(request)

    def work(connection: Connection) -> OneAnnotation:
        now_ms = store.clock_ms()
        at_ms = now_ms if new.timestamp_ms is None else new.timestamp_ms
        experiment_pk, session_id = _writing(connection, principal, experiment_id, now_ms=now_ms)
        row = rows.add(
            connection,
            experiment_pk,
            session_id,
            text=new.annotation,
            meta=text,
            at_ms=at_ms,
            now_ms=now_ms,
        )
        if principal.session is not None:
            ingestion_keys.used(connection, session_id, now_ms=now_ms)
            experiments.told(connection, experiment_pk, at_ms, now_ms=now_ms)
        return OneAnnotation(annotation(row, experiment_id))

    return await change(request, work)


def _writing(
    connection: Connection, principal: Principal, experiment_id: str, *, now_ms: int
) -> tuple[int, int]:
    """Return what we call the experiment, and the session that annotates it."""
    # Looked up in this transaction: it may have been deleted since its token was looked at.
    row = experiments.find(connection, principal.organisation.id, experiment_id)
    if principal.session is not None:
        return row.id, principal.session.id
    return row.id, sessions.newest(connection, row.id, now_ms=now_ms)
