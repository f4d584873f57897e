"""`syvain-metrics member`: the people of the organisation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.client.errors import Refused, Rejected
from infra.client.output import print_json, print_table, say, time_of
from infra.metrics.commands._common import Json, Yes, agreed, checked_role, connect

if TYPE_CHECKING:
    from infra.metrics.api import Api

__all__ = ["app"]

app = typer.Typer(help="Add, list and remove people, and change their roles.")

Email = Annotated[str, typer.Argument(metavar="EMAIL", help="The person's address, or the member's id.")]
Role = Annotated[str, typer.Argument(metavar="ROLE", help="viewer, member or owner.")]


@app.command()
def add(
    email: Annotated[str, typer.Argument(metavar="EMAIL", help="The address that the person signs in with.")],
    *,
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="viewer (reads), member (writes) or owner (manages).")
    ] = "member",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What others read.")] = None,
    as_json: Json = False,
) -> None:
    """Add a person. The password is read from a prompt or from standard input; empty sets none.

    Whom the server knows already keeps their password. Without one nobody can sign in.
    """
    body = {
        "email": email,
        "role": checked_role(role),
        "name": name,
        "password": _read_password(email) or None,
    }
    with connect() as api:
        member = api.post("members", body)["member"]
    if as_json:
        print_json(member)
    else:
        say(f"added {member['email']} as {member['role']}")


@app.command(name="list")
def list_(*, as_json: Json = False) -> None:
    """List the people with their roles."""
    with connect() as api:
        members = api.get("members")["members"]
    if as_json:
        print_json(members)
        return
    print_table(
        ("EMAIL", "NAME", "ROLE", "PASSWORD", "ADDED", "ID"),
        [
            (
                member["email"],
                member["name"],
                member["role"],
                "set" if member["has_password"] else "none",
                time_of(member["created_at_ms"]),
                member["id"],
            )
            for member in members
        ],
    )


@app.command()
def role(email: Email, role_: Role) -> None:
    """Give a person another role."""
    from infra.client.api import part

    body = {"role": checked_role(role_)}
    with connect() as api:
        member = api.patch(f"members/{part(_find(api, email)['id'])}", body)["member"]
    say(f"{member['email']} is {member['role']} now")


@app.command()
def password(email: Email) -> None:
    """Give a person another password, read from a prompt or from standard input: their sessions end."""
    from infra.client.api import part

    new = _read_password(email)
    if not new:
        raise Rejected("no password was given: type it at the prompt, or send it to standard input")
    with connect() as api:
        member = api.patch(f"members/{part(_find(api, email)['id'])}", {"password": new})["member"]
    say(f"{member['email']} has another password now")


@app.command()
def remove(email: Email, *, yes: Yes = False) -> None:
    """Remove a person: their sessions end at once."""
    from infra.client.api import part

    with connect() as api:
        member = _find(api, email)
        agreed(f"Remove {member['email']}?", yes=yes)
        api.delete(f"members/{part(member['id'])}")
    say(f"removed {member['email']}")


def _find(api: Api, given: str) -> dict[str, Any]:
    members: list[dict[str, Any]] = api.get("members")["members"]
    for member in members:
        if given.lower() == member["email"].lower() or given == member["id"]:
            return member
    raise Refused(f"nobody is called {given!r}: syvain-metrics member list shows who is there")


def _read_password(email: str) -> str:
    if not sys.stdin.isatty():
        text = sys.stdin.readline().rstrip("\r\n")
    else:
        import getpass

        text = getpass.getpass(f"password of {email}: ")
        if getpass.getpass("once more: ") != text:
            raise Rejected("the two passwords differ: type the same one twice")
    return text
