"""`syvain-metrics folder`: the tree that experiments lie in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from infra.metrics.commands._common import FolderName, Json, Yes, agreed, connect
from infra.metrics.errors import Refused, Rejected
from infra.metrics.output import print_json, print_table, print_text, say

if TYPE_CHECKING:
    from infra.metrics.api import Api

__all__ = ["app"]

app = typer.Typer(help="List, make, move, rename and delete folders. A path or an id names one.")


@app.command(name="list")
def list_(*, as_json: Json = False) -> None:
    """List every folder with its path and its id."""
    from infra.metrics.find import folder_paths

    with connect() as api:
        folders = folder_paths(api)
    if as_json:
        print_json(folders)
        return
    print_table(("PATH", "ID"), [(one["path"], one["id"]) for one in folders])


@app.command()
def create(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Where: /parent/name.")],
    *,
    parents: Annotated[
        bool,
        typer.Option("--parents", "-p", help="Make what is missing above it; one that is there is fine."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a folder and print its id."""
    from infra.metrics.find import folder_id, parent_and_name

    above, name = parent_and_name(path)
    with connect() as api:
        made = _with_parents(api, f"{above}/{name}") if parents else _make(api, name, folder_id(api, above))
    if as_json:
        print_json({"id": made, "path": f"{'' if above == '/' else above}/{name}"})
    else:
        print_text(made)


@app.command()
def move(
    folder: FolderName,
    to: Annotated[str, typer.Argument(metavar="PARENT", help="The new parent's path or id; / is the root.")],
) -> None:
    """Put a folder under another parent. Its id stays; its experiments go with it."""
    from infra.metrics.find import folder_id

    with connect() as api:
        here = _not_the_root(folder_id(api, folder), "moved")
        api.patch(f"folders/{here}", {"parent_id": folder_id(api, to)})
    say(f"moved {folder} to {to}")


@app.command()
def rename(
    folder: FolderName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name, without a slash.")],
) -> None:
    """Give a folder another name. Its id stays."""
    from infra.metrics.find import folder_id

    with connect() as api:
        here = _not_the_root(folder_id(api, folder), "renamed")
        api.patch(f"folders/{here}", {"name": name})
    say(f"renamed {folder} to {name}")


@app.command()
def delete(folder: FolderName, *, yes: Yes = False) -> None:
    """Delete an empty folder."""
    from infra.metrics.find import folder_id

    with connect() as api:
        here = _not_the_root(folder_id(api, folder), "deleted")
        agreed(f"Delete {folder}?", yes=yes)
        api.delete(f"folders/{here}")
    say(f"deleted {folder}")


def _make(api: Api, name: str, parent_id: str | None) -> str:
    return str(api.post("folders", {"name": name, "parent_id": parent_id})["folder"]["folder_id"])


def _with_parents(api: Api, path: str) -> str:
    """Make what is missing of a path and return the id of its last folder."""
    from infra.metrics.find import folder_id

    here, walked = None, ""
    for name in path.strip("/").split("/"):
        walked = f"{walked}/{name}"
        try:
            here = folder_id(api, walked)
        except Refused:
            here = _make(api, name, here)
    assert here is not None
    return here


def _not_the_root(folder_id: str | None, what: str) -> str:
    if folder_id is None:
        raise Rejected(f"the root / cannot be {what}: name a folder")
    return folder_id
