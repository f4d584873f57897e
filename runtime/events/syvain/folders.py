"""Which folder `--folder` means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_folder", "find_folder"]

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def check_folder(folder: str) -> str:
    """Return a folder's path without a slash at its end, or its id in lower case.

    Raises:
        Rejected: it is neither.
    """
    if _ID.fullmatch(folder):
        return folder.lower()
    if folder.startswith("/"):
        return "/" + "/".join(name for name in folder.split("/") if name)
    raise Rejected(f"--folder must be a path that starts with / or a folder's id, got {folder!r}")


def find_folder(tree: Mapping[str, Any], folder: str) -> str | None:
    """Return the id of the folder that a checked path or id names; unset is the root, `/`.

    Raises:
        Rejected: there is no such folder. It says what is there instead.
    """
    if not folder.startswith("/"):
        if folder in _ids(tree):
            return folder
        raise Rejected(f"--folder {folder}: this organisation has no folder of that id")
    level, folder_id = tree, None
    walked = ""
    for name in folder.split("/")[1:] if folder != "/" else ():
        found = next((inner for inner in level.get("folders", ()) if inner.get("name") == name), None)
        if found is None:
            names = ", ".join(sorted(str(inner.get("name")) for inner in level.get("folders", ()))[:20])
            raise Rejected(
                f"--folder {folder}: there is no {name!r} in {walked or '/'}, only: {names or 'none'}"
            )
        level, folder_id, walked = found, str(found.get("folderId")), f"{walked}/{name}"
    return folder_id


def _ids(level: Mapping[str, Any]) -> set[str]:
    ids: set[str] = set()
    levels = [level]
    for inner in levels:
        ids.add(str(inner.get("folderId")))
        levels += inner.get("folders", ())
    return ids
