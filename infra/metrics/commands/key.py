"""`syvain-metrics key`: the organisation's API keys."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.client.output import print_json, print_table, print_text, say, time_of
from infra.metrics.commands._common import Json, checked_role, connect

__all__ = ["app"]

app = typer.Typer(help="Make, list and revoke API keys.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for.")],
    *,
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="viewer (reads), member (writes) or owner (manages).")
    ] = "member",
    as_json: Json = False,
) -> None:
    """Make a key and print it: it is shown this once."""
    with connect() as api:
        made = api.post("keys", {"name": name, "role": checked_role(role)})
    if as_json:
        print_json(made)
        return
    say(f"a key of {api.host}, as {made['key']['role']}, shown this once:")
    print_text(made["secret"])


@app.command(name="list")
def list_(*, as_json: Json = False) -> None:
    """List the keys, the revoked ones too."""
    with connect() as api:
        keys = api.get("keys")["keys"]
    if as_json:
        print_json(keys)
        return
    print_table(
        ("NAME", "ROLE", "CREATED", "LAST USED", "REVOKED", "ID"),
        [
            (
                key["name"],
                key["role"],
                time_of(key["created_at_ms"]),
                time_of(key["last_used_at_ms"]),
                time_of(key["revoked_at_ms"]),
                key["id"],
            )
            for key in keys
        ],
    )


@app.command()
def revoke(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as key list prints it.")],
) -> None:
    """Revoke a key: from now on it opens nothing."""
    from infra.client.api import part

    with connect() as api:
        api.delete(f"keys/{part(id_)}")
    say(f"revoked {id_}")
