"""Folders: nested, named uniquely among siblings, holding experiments."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from infra.server.refusals import Refused
from infra.server.store import experiments as experiment_rows
from infra.server.store.schema import experiments, folders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.server.store.database import AnyRow

__all__ = [
    "MAX_DEPTH",
    "Place",
    "change",
    "create",
    "find",
    "move",
    "paths",
    "place",
    "place_of",
    "places",
    "remove",
    "rename",
    "resolve",
    "tree",
]

MAX_DEPTH = 32
"""How deep folders nest. The tree is one JSON value, two levels a folder, and readers stop at some 128."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder and where it lies: the ids of those above it, the outermost first, and its path."""

    id: int
    parent_id: int | None
    uid: str
    name: str
    parent_uids: tuple[str, ...]
    path: str


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
        .where(experiments.c.organisation_id == organisation_id, experiments.c.deleted_ms.is_(None))
        .order_by(experiments.c.slug)
    )
    for uid, slug, folder_id in placed:
        levels[folder_id]["experiments"].append({"experimentId": uid, "slug": slug})
    return levels[None]


def paths(connection: Connection, organisation_id: int) -> dict[int | None, str]:
    """Return the path of every folder; that of the root, whose id is None, is `/`."""
    return {None: "/", **{one.id: one.path for one in places(connection, organisation_id).values()}}


def places(connection: Connection, organisation_id: int) -> dict[int, Place]:
    """Return every folder of an organisation with its place, by path."""
    rows = connection.execute(select(folders).where(folders.c.organisation_id == organisation_id)).all()
    by_id = {row.id: row for row in rows}
    parents = {row.id: row.parent_id for row in rows}
    found = [_place([by_id[at] for at in reversed(_upwards(parents, row.id))]) for row in rows]
    return {one.id: one for one in sorted(found, key=lambda one: one.path)}


def place_of(connection: Connection, folder_id: int | None) -> Place | None:
    """Return one folder with its place; None for the root."""
    above: list[AnyRow] = []
    while folder_id is not None:
        above.append(connection.execute(select(folders).where(folders.c.id == folder_id)).one())
        folder_id = above[-1].parent_id
    return _place(above[::-1]) if above else None


def find(connection: Connection, organisation_id: int, ref: str) -> AnyRow:
    """Return the folder of an id, or of a path from the root such as `/mamba/lr-sweep`.

    Raises:
        Refused: There is none in the organisation, or it is the root, which is no folder that can be changed.
    """
    row = _at_path(connection, organisation_id, ref) if ref.startswith("/") else None
    if not ref.startswith("/"):
        row = connection.execute(
            select(folders).where(folders.c.organisation_id == organisation_id, folders.c.uid == ref)
        ).first()
    if row is None:
        what = "path" if ref.startswith("/") else "id"
        raise Refused("folder_not_found", f"no folder has the {what} {json.dumps(ref[:200])}")
    return row


def resolve(connection: Connection, organisation_id: int, ref: str | None) -> int | None:
    """Return what we call the folder of an id or a path; None for the root, which is `/` or None.

    Raises:
        Refused: There is none in the organisation.
    """
    if ref is None or ref == "/":
        return None
    return int(find(connection, organisation_id, ref).id)


def create(
    connection: Connection, organisation_id: int, name: str, parent_uid: str | None, *, now_ms: int
) -> str:
    """Create a folder and return its id.

    Raises:
        Refused: The parent is not there, is as deep as folders go, or has a folder of this name: `details`
            then hold that one's id.
    """
    parent_id = resolve(connection, organisation_id, parent_uid)
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
    folder = find(connection, organisation_id, uid)
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
    folder = find(connection, organisation_id, uid)
    source = resolve(connection, organisation_id, from_uid)
    target = resolve(connection, organisation_id, to_uid)
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
    source = resolve(connection, organisation_id, from_uid)
    target = resolve(connection, organisation_id, to_uid)
    if experiment.folder_id == target:
        return
    if experiment.folder_id != source:
        raise Refused(
            "experiment_folder_move_conflict", "the experiment is not in fromFolderId: it stays where it is"
        )
    connection.execute(update(experiments).where(experiments.c.id == experiment.id).values(folder_id=target))


def change(
    connection: Connection,
    organisation_id: int,
    ref: str,
    *,
    name: str | None = None,
    parent: str | bool | None = False,
) -> int:
    """Rename a folder, move it, or both at once, and return what we call it.

    `name` unset keeps the name, `parent` False the place; a parent of None or `/` is the root.

    Raises:
        Refused: A folder is not there, the name is taken where it goes, or it would come to lie under itself
            or too deep.
    """
    folder = find(connection, organisation_id, ref)
    target = folder.parent_id if isinstance(parent, bool) else resolve(connection, organisation_id, parent)
    new_name = folder.name if name is None else name
    if target != folder.parent_id:
        _check_fits(_parents(connection, organisation_id), folder.id, target)
    _check_free(connection, organisation_id, target, new_name, but=folder.id)
    connection.execute(
        update(folders).where(folders.c.id == folder.id).values(parent_id=target, name=new_name)
    )
    return int(folder.id)


def remove(connection: Connection, organisation_id: int, ref: str) -> Place:
    """Delete an empty folder and return what it was.

    Raises:
        Refused: It is not there, or holds a folder or an experiment.
    """
    folder = find(connection, organisation_id, ref)
    inner = select(folders.c.id).where(folders.c.parent_id == folder.id).limit(1)
    held = select(experiments.c.id).where(experiments.c.folder_id == folder.id).limit(1)
    if any(connection.execute(one).first() is not None for one in (inner, held)):
        raise Refused("folder_not_empty", "the folder holds something: move or delete that first")
    was = place_of(connection, folder.id)
    assert was is not None
    connection.execute(delete(folders).where(folders.c.id == folder.id))
    return was


def _place(way: list[AnyRow]) -> Place:
    """Return the place of the last of some folders that lie one in another."""
    last = way[-1]
    path = "/" + "/".join(row.name for row in way)
    return Place(last.id, last.parent_id, last.uid, last.name, tuple(row.uid for row in way[:-1]), path)


def _at_path(connection: Connection, organisation_id: int, path: str) -> AnyRow | None:
    """Return the folder at a path; a slash at its end says nothing."""
    row: AnyRow | None = None
    names = path.removeprefix("/").removesuffix("/").split("/")
    for name in names[: MAX_DEPTH + 1]:
        row = connection.execute(
            select(folders).where(
                folders.c.organisation_id == organisation_id,
                _in_parent(row.id if row else None),
                folders.c.name == name,
            )
        ).first()
        if row is None:
            return None
    return row


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
