"""What an argument names: a folder by path or id, an experiment by slug or id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from infra.client.api import part
from infra.client.errors import Refused, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from infra.metrics.api import Api

__all__ = [
    "Placed",
    "experiment",
    "experiment_id",
    "experiments",
    "folder_paths",
    "folder_ref",
    "is_id",
    "parent_and_name",
    "select",
]

_PAGE = 10_000
_STATUSES = ("created", "running", "done", "error")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Placed:
    """An experiment with the path of its folder; `/` is the root."""

    id: str
    slug: str
    folder: str


def is_id(text: str) -> bool:
    """Whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


def folder_ref(text: str) -> str:
    """Return a folder's path without a slash at its end, or its id, as the server takes both.

    Raises:
        Rejected: it is neither.
    """
    return text.lower() if is_id(text) else _path(text)


def folder_paths(api: Api) -> list[dict[str, Any]]:
    """Return every folder as `{"id", "path", "parent_id"}`, sorted by path."""
    return sorted(_walk(api.ask("foldertree.read"), "", None), key=lambda one: one["path"])


def parent_and_name(path: str) -> tuple[str, str]:
    """Split a folder's path into that of its parent and its own name.

    Raises:
        Rejected: it is no path, or the root's.
    """
    parent, _, name = _path(path).rpartition("/")
    if not name:
        raise Rejected("the root / is always there: give a path such as /lr-sweep")
    return parent or "/", name


def experiment_id(api: Api, given: str) -> str:
    """Return the id of the experiment that a slug or an id names.

    Raises:
        Refused: there is none.
    """
    found = api.get("experiments", slug=given, limit=1)["experiments"]
    if found:
        return str(found[0]["id"])
    if is_id(given):
        return str(experiment(api, given.lower())["id"])
    raise Refused(
        f"there is no experiment {given!r}: syvain-metrics experiment list shows those that there are"
    )


def experiment(api: Api, id_: str) -> Mapping[str, Any]:
    """Return the whole record of an experiment by its id."""
    record: Mapping[str, Any] = api.get(f"experiments/{part(id_)}")["experiment"]
    return record


def experiments(
    api: Api, *, folder: str | None, search: str | None, status: str | None, limit: int
) -> list[Mapping[str, Any]]:
    """Return at most `limit` experiments as the server lists them; what is unset does not choose.

    Raises:
        Rejected: there is no such status, or the folder is neither a path nor an id.
    """
    if status not in {None, *_STATUSES}:
        raise Rejected(f"--status must be one of {', '.join(_STATUSES)}, got {status!r}")
    inside = None if folder is None else folder_ref(folder)
    found: list[Mapping[str, Any]] = []
    while len(found) < limit:
        asked = min(limit - len(found), _PAGE)
        page = api.get(
            "experiments", folder=inside, search=search, status=status, limit=asked, offset=len(found)
        )["experiments"]
        found += page
        if len(page) < asked:
            break
    return found


def select(api: Api, given: Sequence[str], folders: Sequence[str]) -> list[Placed]:
    """Return the experiments that are named: by slug, by id, by a glob of slugs, or by a folder.

    A slug counts as what it is before it counts as a glob. A folder holds what its folders hold.

    Raises:
        Refused: one of them names nothing.
    """
    tree = api.ask("foldertree.read")
    everything = sorted(_experiments(tree, ""), key=lambda one: (one.folder, one.slug))
    paths = {one["id"]: one["path"] for one in _walk(tree, "", None)}
    chosen: dict[str, Placed] = {}
    for text in given:
        found = _named(everything, text)
        if not found:
            raise Refused(f"no experiment is called {text!r}, has that id, or fits it as a glob")
        chosen |= {one.id: one for one in found}
    for text in folders:
        path = paths.get(text.lower()) if is_id(text) else _path(text)
        if path is None or (path != "/" and path not in paths.values()):
            raise Refused(f"there is no folder {text}: syvain-metrics folder list shows those that there are")
        inside = "/" if path == "/" else f"{path}/"
        chosen |= {one.id: one for one in everything if f"{one.folder}/".startswith(inside)}
    return list(chosen.values())


def _named(everything: Sequence[Placed], text: str) -> list[Placed]:
    exact = [one for one in everything if one.slug == text]
    if not exact and is_id(text):
        exact = [one for one in everything if one.id == text.lower()]
    return exact or [one for one in everything if fnmatchcase(one.slug, text)]


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise Rejected(f"a folder is a path that starts with / or an id, got {text!r}")
    return "/" + "/".join(name for name in text.split("/") if name)


def _walk(level: Mapping[str, Any], path: str, parent_id: str | None) -> Iterator[dict[str, Any]]:
    for folder in level.get("folders", ()):
        here = f"{path}/{folder['name']}"
        yield {"id": folder["folderId"], "path": here, "parent_id": parent_id}
        yield from _walk(folder, here, folder["folderId"])


def _experiments(level: Mapping[str, Any], path: str) -> Iterator[Placed]:
    for one in level.get("experiments", ()):
        yield Placed(one["experimentId"], one["slug"], path or "/")
    for folder in level.get("folders", ()):
        yield from _experiments(folder, f"{path}/{folder['name']}")
