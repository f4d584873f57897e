"""Folders: nested, named uniquely among siblings, holding experiments."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, insert, select, update

from infra.server.refusals import Refused
from infra.server.store import experiments as experiment_rows
from infra.server.store.schema import experiments, folders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.server.store.database import AnyRow

__all__ = ["MAX_DEPTH", "create", "move", "paths", "place", "rename", "tree"]

MAX_DEPTH = 32
"""How deep folders nest. The tree is one JSON value, two levels a folder, and readers stop at some 128."""


def tree(connection: Connection, organisation_id: int) -> dict[str, Any]:
    """Return the root level: folders within folders, each level with its experiments."""
    levels: dict[int | None, dict[str, Any]] = {None: {"folders": [], "experiments": []}}
    rows = connection.execute(
        select(folders).where(folders.c.organisation_id == organisation_id).order_by(folders.c.name)
    ).all()
    for row in rows:
        levels[row.id] = {"folderId": row.uid, "name": row.name, "folders": [], "experiments": []}
    for row in rows:
        levels[row.parent_id]["folders"].append(levels[row.id])
    placed = connection.execute(
        select(experiments.c.uid, experiments.c.slug, experiments.c.folder_id)
        .where(experiments.c.organisation_id == organisation_id)
        .order_by(experiments.c.slug)
    )
    for uid, slug, folder_id in placed:
        levels[folder_id]["experiments"].append({"experimentId": uid, "slug": slug})
    return levels[None]


def paths(connection: Connection, organisation_id: int) -> dict[int | None, str]:
    """Return the path of every folder; that of the root, whose id is None, is `/`."""
    rows = connection.execute(
        select(folders.c.id, folders.c.parent_id, folders.c.name).where(
            folders.c.organisation_id == organisation_id
        )
    ).all()
    parents = {row.id: row.parent_id for row in rows}
    names = {row.id: row.name for row in rows}
    found: dict[int | None, str] = {None: "/"}
    for folder_id in parents:
        found[folder_id] = "/" + "/".join(names[at] for at in reversed(_upwards(parents, folder_id)))
    return found


def create(
    connection: Connection, organisation_id: int, name: str, parent_uid: str | None, *, now_ms: int
) -> str:
    """Create a folder and return its id.

    Raises:
        Refused: The parent is not there, is as deep as folders go, or has a folder of this name: `details`
            then hold that one's id.
    """
    parent_id = _id(connection, organisation_id, parent_uid)
    _check_depth(len(_upwards(_parents(connection, organisation_id), parent_id)) + 1)
    _check_free(connection, organisation_id, parent_id, name)
    uid = str(uuid.uuid4())
    connection.execute(
        insert(folders).values(
            uid=uid, organisation_id=organisation_id, parent_id=parent_id, name=name, created_ms=now_ms
        )
    )
    return uid


def rename(connection: Connection, organisation_id: int, uid: str, name: str) -> None:
    """Give a folder another name; its id and what is in it stay.

    Raises:
        Refused: The folder is not there, or a sibling has the name.
    """
    folder = _find(connection, organisation_id, uid)
    _check_free(connection, organisation_id, folder.parent_id, name, but=folder.id)
    connection.execute(update(folders).where(folders.c.id == folder.id).values(name=name))


def move(
    connection: Connection, organisation_id: int, uid: str, *, from_uid: str | None, to_uid: str | None
) -> None:
    """Move a folder with all it holds. None is the root.

    Raises:
        Refused: One of the folders is not there, the folder is not where it is said to be, the name is taken
            where it goes, or it would come to lie under itself or too deep.
    """
    folder = _find(connection, organisation_id, uid)
    source = _id(connection, organisation_id, from_uid)
    target = _id(connection, organisation_id, to_uid)
    if folder.parent_id not in {source, target}:
        raise Refused("folder_move_conflict", "the folder is not in fromFolderId: read the folder tree again")
    _check_fits(_parents(connection, organisation_id), folder.id, target)
    _check_free(connection, organisation_id, target, folder.name, but=folder.id)
    connection.execute(update(folders).where(folders.c.id == folder.id).values(parent_id=target))


def place(
    connection: Connection,
    organisation_id: int,
    experiment_uid: str,
    *,
    from_uid: str | None,
    to_uid: str | None,
) -> None:
    """Put an experiment into a folder. One that is there already stays, wherever it is said to come from.

    Raises:
        Refused: The experiment or a folder is not there, or the experiment is in a third folder.
    """
    experiment = experiment_rows.find(connection, organisation_id, experiment_uid)
    source = _id(connection, organisation_id, from_uid)
    target = _id(connection, organisation_id, to_uid)
    if experiment.folder_id == target:
        return
    if experiment.folder_id != source:
        raise Refused(
            "experiment_folder_move_conflict", "the experiment is not in fromFolderId: it stays where it is"
        )
    connection.execute(update(experiments).where(experiments.c.id == experiment.id).values(folder_id=target))


def _find(connection: Connection, organisation_id: int, uid: str) -> AnyRow:
    row = connection.execute(
        select(folders).where(folders.c.organisation_id == organisation_id, folders.c.uid == uid)
    ).first()
    if row is None:
        raise Refused("folder_not_found", f"no folder has the id {json.dumps(uid[:64])}")
    return row


def _id(connection: Connection, organisation_id: int, uid: str | None) -> int | None:
    return None if uid is None else int(_find(connection, organisation_id, uid).id)


def _check_free(
    connection: Connection, organisation_id: int, parent_id: int | None, name: str, *, but: int | None = None
) -> None:
    row = connection.execute(
        select(folders.c.id, folders.c.uid).where(
            folders.c.organisation_id == organisation_id, _in_parent(parent_id), folders.c.name == name
        )
    ).first()
    if row is not None and row.id != but:
        raise Refused(
            "folder_already_exists",
            f"a folder named {json.dumps(name)} is already there",
            details={"folderId": row.uid},
        )


def _in_parent(parent_id: int | None) -> ColumnElement[bool]:
    return folders.c.parent_id.is_(None) if parent_id is None else folders.c.parent_id == parent_id


def _parents(connection: Connection, organisation_id: int) -> dict[int, int | None]:
    rows = connection.execute(
        select(folders.c.id, folders.c.parent_id).where(folders.c.organisation_id == organisation_id)
    )
    return {row.id: row.parent_id for row in rows}


def _upwards(parents: Mapping[int, int | None], folder_id: int | None) -> list[int]:
    """Return a folder and all above it; nothing for the root."""
    found = []
    while folder_id is not None:
        found.append(folder_id)
        folder_id = parents[folder_id]
    return found


def _check_fits(parents: Mapping[int, int | None], folder_id: int, target: int | None) -> None:
    above = _upwards(parents, target)
    if folder_id in above:
        raise Refused("cycle", "a folder cannot be moved under itself")
    ways = (_upwards(parents, one) for one in parents)
    _check_depth(len(above) + max(way.index(folder_id) + 1 for way in ways if folder_id in way))


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Refused("limit_exceeded", f"folders nest at most {MAX_DEPTH} deep, got {depth}")
