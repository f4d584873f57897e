"""Folders: listed, made, shown with what they hold, renamed, moved, deleted.

Wherever a folder is named, its id and its path from the root both do; `/` is the root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, UnsetType

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.v1.model import Folder, Item, Shown
from infra.server.api.v1.requests import body_of, change, dashboard_of, look, query_of
from infra.server.limits import check, check_folder_name
from infra.server.refusals import Refused
from infra.server.store import experiments as experiment_rows
from infra.server.store import folders as rows

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["router", "shown_by"]

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute)
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern="^[^/]*$", examples=["lr-sweep"])]
Ref = Annotated[str, Meta(description="A folder's id, or its path from the root.", examples=["/mamba"])]
_CODES = ("folder_not_found",)
_MAX_HELD = 10_000
"""How many of a folder's experiments are shown with it; the list of experiments shows the rest."""


class FindFolders(msgspec.Struct):
    """Which folders are wanted: unset, all."""

    path: Ref | None = None


class NewFolder(msgspec.Struct):
    """A folder to make."""

    name: Name
    parent_id: Ref | None = None


class ChangeFolder(msgspec.Struct):
    """What to change of a folder; what is left out stays."""

    name: Name | UnsetType = UNSET
    parent_id: Ref | UnsetType | None = UNSET


class OneFolder(msgspec.Struct):
    """One folder."""

    folder: Folder


class Folders(msgspec.Struct):
    """Some folders."""

    folders: list[Folder]


class FolderContents(msgspec.Struct):
    """A folder with what lies in it. The root is no folder: null."""

    folder: Folder | None
    folders: list[Folder]
    experiments: list[Item]


@router.get("/folders")
@needs("read")
@describe(Operation(data=Folders, query=FindFolders))
async def list_folders(request: Request) -> Response:
    """List every folder by its path, or the one at a path or of an id."""
    path = query_of(request, FindFolders).path
    wanted = None if path is None else "/" + path.strip("/")
    organisation, shown = principal_of(request).organisation, shown_by(request)

    def read(connection: Connection) -> Folders:
        found = rows.places(connection, organisation.id).values()
        return Folders([shown.folder(one) for one in found if wanted in {None, one.path} or one.uid == path])

    return await look(request, read)


@router.post("/folders")
@needs("write")
@describe(
    Operation(
        repeatable=True,
        data=OneFolder,
        body=NewFolder,
        codes=(*_CODES, "folder_already_exists", "limit_exceeded"),
        examples={"nested": {"name": "lr-sweep", "parent_id": None}},
    )
)
async def create_folder(request: Request) -> Response:
    """Make a folder."""
    new = await body_of(request, NewFolder)
    name = check(check_folder_name, new.name)
    organisation, shown, store = principal_of(request).organisation, shown_by(request), store_of(request)

    def make(connection: Connection) -> OneFolder:
        uid = rows.create(connection, organisation.id, name, new.parent_id, now_ms=store.clock_ms())
        return _folder(connection, shown, rows.find(connection, organisation.id, uid).id)

    return await change(request, make)


@router.get("/folders/{folder_id:path}")
@needs("read")
@describe(Operation(data=FolderContents, codes=_CODES))
async def show_folder(request: Request, folder_id: str) -> Response:
    """Show a folder with the folders and the experiments that lie in it."""
    organisation, shown = principal_of(request).organisation, shown_by(request)

    def read(connection: Connection) -> FolderContents:
        found = rows.resolve(connection, organisation.id, folder_id)
        places = rows.places(connection, organisation.id)
        here = None if found is None else places[found]
        held = experiment_rows.listed(connection, organisation.id, folder_id=found, limit=_MAX_HELD)
        return FolderContents(
            None if here is None else shown.folder(here),
            [shown.folder(one) for one in places.values() if one.parent_id == found],
            [shown.item(row, here) for row in held],
        )

    return await look(request, read)


@router.patch("/folders/{folder_id:path}")
@needs("write")
@describe(
    Operation(
        repeatable=True,
        data=OneFolder,
        body=ChangeFolder,
        codes=(*_CODES, "folder_already_exists", "cycle", "limit_exceeded"),
        examples={"renamed": {"name": "lr-sweep-2"}, "to the root": {"parent_id": None}},
    )
)
async def change_folder(request: Request, folder_id: str) -> Response:
    """Rename a folder, move it, or both at once. Its id and what it holds stay."""
    body = await body_of(request, ChangeFolder)
    if body.name is UNSET and body.parent_id is UNSET:
        raise Refused("invalid_request", "a folder's change needs name, parent_id or both")
    name = None if isinstance(body.name, UnsetType) else check(check_folder_name, body.name)
    parent = False if isinstance(body.parent_id, UnsetType) else body.parent_id
    organisation, shown = principal_of(request).organisation, shown_by(request)

    def work(connection: Connection) -> OneFolder:
        changed = rows.change(connection, organisation.id, folder_id, name=name, parent=parent)
        return _folder(connection, shown, changed)

    return await change(request, work)


@router.delete("/folders/{folder_id:path}")
@needs("write")
@describe(Operation(repeatable=True, data=OneFolder, codes=(*_CODES, "folder_not_empty")))
async def delete_folder(request: Request, folder_id: str) -> Response:
    """Delete a folder that holds nothing, and show what it was."""
    organisation, shown = principal_of(request).organisation, shown_by(request)
    return await change(
        request,
        lambda connection: OneFolder(shown.folder(rows.remove(connection, organisation.id, folder_id))),
    )


def shown_by(request: Request) -> Shown:
    """Return what shows rows to whom a request is from."""
    return Shown(
        principal_of(request).organisation, dashboard_of(request), now_ms=store_of(request).clock_ms()
    )


def _folder(connection: Connection, shown: Shown, folder_id: int) -> OneFolder:
    place = rows.place_of(connection, folder_id)
    assert place is not None
    return OneFolder(shown.folder(place))
