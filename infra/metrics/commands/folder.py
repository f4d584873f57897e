"""`syvain-metrics folder`: the tree that experiments lie in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.client.errors import Refused, Rejected
from infra.client.output import print_json, print_table, print_text, say
from infra.metrics.commands._common import FolderName, Json, Yes, agreed, connect

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
    from infra.metrics.find import parent_and_name

    above, name = parent_and_name(path)
    with connect() as api:
        if parents:
            _make_missing(api, above)
        made = _make(api, name, above, may_be_there=parents)
    if as_json:
        print_json({"id": made["folder_id"], "path": made["path_name"]})
    else:
        print_text(made["folder_id"])


@app.command()
def move(
    folder: FolderName,
    to: Annotated[str, typer.Argument(metavar="PARENT", help="The new parent's path or id; / is the root.")],
) -> None:
    """Put a folder under another parent. Its id stays; its experiments go with it."""
    from infra.metrics.find import folder_ref

    parent = folder_ref(to)
    _change(folder, {"parent_id": None if parent == "/" else parent})
    say(f"moved {folder} to {to}")


@app.command()
def rename(
    folder: FolderName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name, without a slash.")],
) -> None:
    """Give a folder another name. Its id stays."""
    if not name or "/" in name:
        raise Rejected(
            f"a folder's name must not be empty and has no slash, got {name!r}: move changes where it is"
        )
    _change(folder, {"name": name})
    say(f"renamed {folder} to {name}")


@app.command()
def delete(folder: FolderName, *, yes: Yes = False) -> None:
    """Delete an empty folder."""
    here = _address(folder)
    agreed(f"Delete the folder {folder}?", yes=yes)
    with connect() as api:
        api.delete(here)
    say(f"deleted {folder}")


def _change(folder: str, body: dict[str, str | None]) -> None:
    here = _address(folder)
    with connect() as api:
        api.patch(here, body)


def _address(folder: str) -> str:
    from infra.client.api import part
    from infra.metrics.find import folder_ref

    ref = folder_ref(folder)
    if ref == "/":
        raise Rejected("the root / stays as it is: name a folder")
    return f"folders/{part(ref)}"


def _make(api: Api, name: str, above: str, *, may_be_there: bool) -> dict[str, Any]:
    """Make a folder and return it; where it may be there already, return that one."""
    try:
        made = api.post("folders", {"name": name, "parent_id": None if above == "/" else above})["folder"]
    except Refused as refused:
        if refused.code != "folder_already_exists" or not may_be_there:
            raise
        made = api.get("folders", path=f"{above.rstrip('/')}/{name}")["folders"][0]
    return dict(made)


def _make_missing(api: Api, path: str) -> None:
    above = "/"
    for name in path.strip("/").split("/") if path != "/" else ():
        _make(api, name, above, may_be_there=True)
        above = f"{above.rstrip('/')}/{name}"
