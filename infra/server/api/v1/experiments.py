"""Experiments: listed, created, shown, told their status, moved, renamed, deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, UnsetType

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.v1.folders import Ref, shown_by
from infra.server.api.v1.model import Experiment, Item, Status
from infra.server.api.v1.requests import body_of, change, look, query_of
from infra.server.limits import check, check_display_name, check_error_parts, compact_object
from infra.server.refusals import Refused
from infra.server.store import experiments as rows
from infra.server.store import folders, lifecycle, removal
from infra.server.store.commands import Change
from runtime.events import limits

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.server.store.database import AnyRow

__all__ = ["Limit", "Time", "router"]

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute)
Limit = Annotated[int, Meta(ge=1, le=10_000)]
Time = Annotated[int, Meta(ge=0, le=limits.MAX_TIMESTAMP_MS, description="Epoch milliseconds.")]
Sought = Annotated[str, Meta(max_length=limits.MAX_SLUG_UNITS)]
_KINDS: dict[str, Literal["start", "done", "error"]] = {"running": "start", "done": "done", "error": "error"}
_CODES = ("experiment_not_found",)


class ListExperiments(msgspec.Struct):
    """Which experiments are wanted; all that is given holds."""

    slug: Sought | None = None
    search: Sought | None = None
    status: Status | None = None
    folder: Ref | None = None
    limit: Limit = 1000
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0


class NewExperiment(msgspec.Struct):
    """An experiment to create."""

    slug: Annotated[str, Meta(min_length=1, max_length=limits.MAX_SLUG_UNITS)]
    description: Annotated[str, Meta(max_length=limits.MAX_DESCRIPTION_UNITS)] = ""
    metadata: dict[str, Any] = {}
    folder_id: Ref | None = None


class Failure(msgspec.Struct):
    """Why an experiment failed."""

    name: Annotated[str, Meta(max_length=500)] = "Error"
    detail: Annotated[str, Meta(max_length=8000)] = ""


class TellStatus(msgspec.Struct):
    """What happened to an experiment; unset, the time is that of arrival."""

    status: Literal["running", "done", "error"]
    error: Failure | None = None
    timestamp_ms: Time | None = None


class ChangeExperiment(msgspec.Struct):
    """What to change of an experiment; what is left out stays."""

    folder_id: Ref | UnsetType | None = UNSET
    display_name: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType | None = UNSET


class OneExperiment(msgspec.Struct):
    """One experiment."""

    experiment: Experiment


class Experiments(msgspec.Struct):
    """Some experiments."""

    experiments: list[Item]


@router.get("/experiments")
@needs("read")
@describe(Operation(data=Experiments, query=ListExperiments, codes=("folder_not_found",)))
async def list_experiments(request: Request) -> Response:
    """List experiments, the one that changed last first.

    `slug` is a whole slug, `search` a part of one or of a display name in any case, `folder` an id or a path.
    """
    wanted = query_of(request, ListExperiments)
    organisation, shown = principal_of(request).organisation, shown_by(request)

    def read(connection: Connection) -> Experiments:
        found = rows.listed(
            connection,
            organisation.id,
            slug=wanted.slug,
            search=wanted.search,
            status=wanted.status,
            folder_id=False
            if wanted.folder is None
            else folders.resolve(connection, organisation.id, wanted.folder),
            limit=wanted.limit,
            offset=wanted.offset,
        )
        places = folders.places(connection, organisation.id)
        return Experiments([shown.item(row, places.get(row.folder_id)) for row in found])

    return await look(request, read)


@router.post("/experiments")
@needs("write")
@describe(
    Operation(
        repeatable=True,
        data=OneExperiment,
        body=NewExperiment,
        codes=("folder_not_found", "limit_exceeded", "invalid_event"),
        examples={"new": {"slug": "run-1", "description": "", "metadata": {"lr": 0.1}}},
    )
)
async def create_experiment(request: Request) -> Response:
    """Create an experiment.

    One that has the slug already is continued: its description and metadata are replaced, and it stays where
    somebody put it.
    """
    new = await body_of(request, NewExperiment)
    check(limits.check_slug, new.slug)
    check(limits.check_description, new.description)
    meta = compact_object(new.metadata, field="metadata")
    organisation, store = principal_of(request).organisation, store_of(request)

    def work(connection: Connection) -> AnyRow:
        return rows.create(
            connection,
            organisation_id=organisation.id,
            slug=new.slug,
            description=new.description,
            meta=meta,
            folder_id=folders.resolve(connection, organisation.id, new.folder_id),
            now_ms=store.clock_ms(),
        )

    return await change(request, lambda connection: _show(request, connection, work(connection).uid))


@router.get("/experiments/{experiment_id}")
@needs("read")
@describe(Operation(data=OneExperiment, codes=_CODES))
async def show_experiment(request: Request, experiment_id: str) -> Response:
    """Show an experiment."""
    return await look(request, lambda connection: _show(request, connection, experiment_id))


@router.post("/experiments/{experiment_id}")
@needs("write")
@describe(
    Operation(
        repeatable=True,
        data=OneExperiment,
        body=TellStatus,
        codes=(*_CODES, "limit_exceeded"),
        examples={
            "started": {"status": "running"},
            "failed": {"status": "error", "error": {"name": "ValueError", "detail": "boom"}},
        },
    )
)
async def tell_status(request: Request, experiment_id: str) -> Response:
    """Say that an experiment runs, is done or failed. A start clears what an earlier end said."""
    told = await body_of(request, TellStatus)
    if told.error is not None and told.status != "error":
        raise Refused("invalid_request", f"error belongs to the status error, got {told.status}")
    failure = (told.error or Failure()) if told.status == "error" else None
    if failure is not None:
        check(check_error_parts, (failure.name, failure.detail))
    organisation, store = principal_of(request).organisation, store_of(request)

    def work(connection: Connection) -> OneExperiment:
        now_ms = store.clock_ms()
        row = rows.find(connection, organisation.id, experiment_id)
        told_by = lifecycle.speaker(connection, row, start=told.status == "running", now_ms=now_ms)
        said = Change("", _KINDS[told.status], told.timestamp_ms, *_error(failure))
        lifecycle.apply(connection, row.id, told_by, said, now_ms=now_ms)
        rows.told(connection, row.id, now_ms if said.at_ms is None else said.at_ms, now_ms=now_ms)
        return _show(request, connection, experiment_id)

    return await change(request, work)


@router.patch("/experiments/{experiment_id}")
@needs("write")
@describe(
    Operation(
        repeatable=True,
        data=OneExperiment,
        body=ChangeExperiment,
        codes=(*_CODES, "folder_not_found", "limit_exceeded"),
        examples={"to the root": {"folder_id": None}, "named": {"display_name": "The one that worked"}},
    )
)
async def change_experiment(request: Request, experiment_id: str) -> Response:
    """Move an experiment to a folder, set the name that people read, or both. The slug never changes."""
    body = await body_of(request, ChangeExperiment)
    if body.folder_id is UNSET and body.display_name is UNSET:
        raise Refused("invalid_request", "an experiment's change needs folder_id, display_name or both")
    if isinstance(body.display_name, str):
        check(check_display_name, body.display_name)
    organisation, store = principal_of(request).organisation, store_of(request)

    def work(connection: Connection) -> OneExperiment:
        row = rows.find(connection, organisation.id, experiment_id)
        if not isinstance(body.folder_id, UnsetType):
            rows.move(connection, row.id, folders.resolve(connection, organisation.id, body.folder_id))
        if not isinstance(body.display_name, UnsetType):
            rows.rename(connection, row, body.display_name, now_ms=store.clock_ms())
        return _show(request, connection, experiment_id)

    return await change(request, work)


@router.delete("/experiments/{experiment_id}")
@needs("write")
@describe(Operation(repeatable=True, data=OneExperiment, codes=_CODES))
async def delete_experiment(request: Request, experiment_id: str) -> Response:
    """Delete an experiment with all it holds, and show what it was. Its slug is free at once."""
    organisation, store = principal_of(request).organisation, store_of(request)

    def work(connection: Connection) -> OneExperiment:
        was = _show(request, connection, experiment_id)
        row = rows.find(connection, organisation.id, experiment_id)
        removal.begin(connection, row.id, now_ms=store.clock_ms())
        store.ingest.forget_one(row.id)  # what it remembers is no longer there
        return was

    response = await change(request, work)
    request.app.state.remover.wake()
    return response


def _show(request: Request, connection: Connection, experiment_uid: str) -> OneExperiment:
    row = rows.find(connection, principal_of(request).organisation.id, experiment_uid)
    return OneExperiment(shown_by(request).experiment(row, folders.place_of(connection, row.folder_id)))


def _error(failure: Failure | None) -> tuple[str | None, str | None]:
    """Return an error's text and its metadata, as the collector says them."""
    if failure is None:
        return None, None
    text = f"{failure.name}: {failure.detail}" if failure.detail else failure.name
    return text, limits.compact({"error_type": failure.name}).decode()
