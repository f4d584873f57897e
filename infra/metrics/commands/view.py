"""`syvain-metrics view`: the saved setups of the app."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.client.errors import Refused, Rejected
from infra.client.output import print_json, print_table, print_text, say, time_of
from infra.metrics.commands._common import Json, Yes, agreed, connect, json_object

if TYPE_CHECKING:
    from infra.metrics.api import Api

__all__ = ["app"]

app = typer.Typer(help="List, show, save and delete views. A name or an id names one.")

View = Annotated[str, typer.Argument(metavar="VIEW", help="Its name or its id.")]


@app.command(name="list")
def list_(*, as_json: Json = False) -> None:
    """List the views of the organisation."""
    with connect() as api:
        views = api.get("views")["views"]
    if as_json:
        print_json(views)
        return
    print_table(
        ("NAME", "UPDATED", "ID"),
        [(view["name"], time_of(view["updated_at_ms"]), view["id"]) for view in views],
    )


@app.command()
def show(view: View) -> None:
    """Print what a view holds, as JSON that `view save` takes."""
    with connect() as api:
        print_json(_read(api, view)["setup"])


@app.command()
def save(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The view's name; one that is there is replaced.")
    ],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSON object; - reads standard input.")],
) -> None:
    """Save a view and print its id."""
    setup = json_object(_text(file), "a view")
    with connect() as api:
        known = [view for view in api.get("views")["views"] if view["name"] == name]
        body = {"name": name, "setup": setup}
        saved = (api.put(f"views/{known[0]['id']}", body) if known else api.post("views", body))["view"]
    print_text(saved["id"])


@app.command()
def delete(view: View, *, yes: Yes = False) -> None:
    """Delete a view for everyone in the organisation."""
    with connect() as api:
        found = _read(api, view)
        agreed(f"Delete the view {found['name']}?", yes=yes)
        api.delete(f"views/{found['id']}")
    say(f"deleted {found['name']}")


def _read(api: Api, given: str) -> dict[str, Any]:
    for view in api.get("views")["views"]:
        if given in (view["name"], view["id"]):
            found: dict[str, Any] = api.get(f"views/{view['id']}")["view"]
            return found
    raise Refused(f"no view is called {given!r}: syvain-metrics view list shows those that there are")


def _text(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"{file} cannot be read ({error}): name a file that holds a JSON object") from error
