"""`syvain-metrics server`: run the Metrics server, and keep its data."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.client.errors import Rejected
from infra.client.output import print_json, print_table, print_text, say
from infra.metrics.commands._common import Json  # noqa: TC001 - typer reads it

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.server.datadir import Place

__all__ = ["app"]

app = typer.Typer(help="Start the server, back it up, restore it, bring its tables up to date.")
organisations = typer.Typer(help="Organisations beside the first: each sees what is its own alone.")
app.add_typer(organisations, name="organisation")

Data = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Directory of the database, the key and the lock; made when missing.",
        show_default="syvain-metrics in XDG_DATA_HOME, else in ~/.local/share",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="postgresql://... instead of a directory. The variable hides it from ps.",
        envvar="SYVAIN_METRICS_DATABASE",
    ),
]


@app.command()
def start(
    *,
    data: Data = None,
    database: Database = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8041,
    login: Annotated[
        bool,
        typer.Option(
            "--login/--no-login", help="On the first start, save the key where the public clients look."
        ),
    ] = True,
    sign_in: Annotated[
        bool,
        typer.Option(
            "--sign-in",
            help="Pages ask for a sign-in even at the machine itself, as they do everywhere else.",
        ),
    ] = False,
) -> None:
    """Start the server and serve until SIGTERM or Ctrl-C. The first start makes an organisation and a key."""
    with _usable(data, database) as place:
        from infra.server.serving import configure_logging, serve

        configure_logging()
        serve(place, host=host, port=port, credentials=login, keyless=not sign_in)


@app.command()
def migrate(*, data: Data = None, database: Database = None) -> None:
    """Bring the tables up to date, as every start does; the server must not run."""
    with _usable(data, database) as place:
        from infra.server.upkeep import migrate as run

        before, after = run(place)
        name = place.name
    say(f"{name}: the tables are those of version {after}" + (f", they were {before}'s" if before else ""))


@app.command()
def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; an older one is replaced.")],
    *,
    data: Data = None,
    database: Database = None,
) -> None:
    """Write everything that was acknowledged into one file. A server that runs goes on."""
    with _usable(data, database) as place:
        from infra.server.upkeep import backup as run

        size_bytes = run(place, Path(file))
    say(f"{size_bytes:,} bytes in {file}")


@app.command()
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file that server backup wrote.")],
    *,
    data: Data = None,
    database: Database = None,
) -> None:
    """Fill an empty directory or database from a backup, whole or not at all."""
    with _usable(data, database) as place:
        from infra.server.upkeep import restore as run

        run(place, Path(file))
        name = place.name
    say(f"{file} is restored in {name}: start the server there")


@app.command()
def compact(*, data: Data = None, database: Database = None) -> None:
    """Give back the room of what was deleted; the server must not run."""
    with _usable(data, database) as place:
        from infra.server.upkeep import compact as run

        before, after = run(place)
        name = place.name
    say(f"{name}: {before:,} bytes before, {after:,} now")


@organisations.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people know it by.")],
    *,
    data: Data = None,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Make an organisation and print an owner's key of it: it is shown this once. A server goes on."""
    with _usable(data, database) as place:
        from infra.server.upkeep import add_organisation

        made, key = add_organisation(place, name)
    if as_json:
        print_json({"organization": {"id": made.uid, "name": made.name}, "secret": key})
        return
    say(f"{made.name} is {made.uid}; a key of it, as owner, shown this once:")
    print_text(key)


@organisations.command(name="list")
def list_(*, data: Data = None, database: Database = None, as_json: Json = False) -> None:
    """List the organisations, the first start's first."""
    with _usable(data, database) as place:
        from infra.server.upkeep import organisations as found

        rows = found(place)
    if as_json:
        print_json([{"id": row.uid, "name": row.name} for row in rows])
        return
    print_table(("NAME", "ID"), [(row.name, row.uid) for row in rows])


@contextmanager
def _usable(data: str | None, database: str | None) -> Iterator[Place]:
    """Yield the place that the options name; one that cannot be used is the user's to change."""
    from infra.server.datadir import place
    from infra.server.refusals import Unusable

    if data == "":
        raise Rejected("--data must name a directory, got '': . is the working directory")
    directory = Path(data) if data is not None else None if database is not None else _default()
    try:
        yield place(data=directory, database=database)
    except Unusable as error:
        raise Rejected(str(error)) from error


def _default() -> Path:
    configured = Path(os.environ.get("XDG_DATA_HOME", "").strip() or "unset")
    root = configured if configured.is_absolute() else Path.home() / ".local" / "share"
    return root / "syvain-metrics"
