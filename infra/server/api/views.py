"""/api/v1/views: setups of the app that were saved for everybody in the organisation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request, Response

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.texts import Name
from infra.server.api.v1.requests import body_of, change, look
from infra.server.limits import compact_object
from infra.server.store import views

if TYPE_CHECKING:
    from infra.server.store.database import AnyRow

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute, tags=["views"])


class ListedView(msgspec.Struct):
    """A view without its setup."""

    id: str
    name: str
    created_at_ms: int
    updated_at_ms: int


class View(ListedView):
    """A view. `setup` is the app's own; it holds ids of experiments and folders, never paths."""

    setup: dict[str, Any]


class Views(msgspec.Struct):
    """All views."""

    views: list[ListedView]


class OneView(msgspec.Struct):
    """One view."""

    view: View


class SaveView(msgspec.Struct, forbid_unknown_fields=True):
    """What to save: at most 64 KiB of compact JSON under a name of its own."""

    name: Name
    setup: dict[str, Any]


@router.get("/api/v1/views")
@needs("read")
@describe(Operation(data=Views))
async def list_views(request: Request) -> Response:
    """List the views by name."""
    organisation = principal_of(request).organisation
    return await look(
        request,
        lambda connection: Views(
            [ListedView(**_head(row)) for row in views.of_organisation(connection, organisation.id)]
        ),
    )


@router.post("/api/v1/views")
@needs("write")
@describe(
    Operation(repeatable=True, data=OneView, body=SaveView, codes=("view_already_exists", "limit_exceeded"))
)
async def create_view(request: Request) -> Response:
    """Save a view."""
    organisation, now_ms = principal_of(request).organisation, store_of(request).clock_ms()
    asked, setup = await _saved(request)
    return await change(
        request,
        lambda connection: _shown(
            views.create(connection, organisation.id, asked.name, setup, now_ms=now_ms)
        ),
    )


@router.get("/api/v1/views/{view_id}")
@needs("read")
@describe(Operation(data=OneView, codes=("view_not_found",)))
async def show_view(request: Request, view_id: str) -> Response:
    """Return a view with its setup."""
    organisation = principal_of(request).organisation
    return await look(request, lambda connection: _shown(views.find(connection, organisation.id, view_id)))


@router.put("/api/v1/views/{view_id}")
@needs("write")
@describe(
    Operation(
        repeatable=True,
        data=OneView,
        body=SaveView,
        codes=("view_not_found", "view_already_exists", "limit_exceeded"),
    )
)
async def replace_view(request: Request, view_id: str) -> Response:
    """Save a view anew; its id stays."""
    organisation, now_ms = principal_of(request).organisation, store_of(request).clock_ms()
    asked, setup = await _saved(request)
    return await change(
        request,
        lambda connection: _shown(
            views.replace(connection, organisation.id, view_id, name=asked.name, setup=setup, now_ms=now_ms)
        ),
    )


@router.delete("/api/v1/views/{view_id}")
@needs("write")
@describe(Operation(repeatable=True, data=OneView, codes=("view_not_found",)))
async def delete_view(request: Request, view_id: str) -> Response:
    """Forget a view, and return what it was."""
    organisation = principal_of(request).organisation
    return await change(
        request, lambda connection: _shown(views.remove(connection, organisation.id, view_id))
    )


async def _saved(request: Request) -> tuple[SaveView, str]:
    asked = await body_of(request, SaveView)
    return asked, compact_object(asked.setup, field="setup")


def _head(row: AnyRow) -> dict[str, Any]:
    return {
        "id": row.uid,
        "name": row.name,
        "created_at_ms": row.created_ms,
        "updated_at_ms": row.updated_ms,
    }


def _shown(row: AnyRow) -> OneView:
    return OneView(View(**_head(row), setup=json.loads(row.setup)))
