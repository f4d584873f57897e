"""The command that starts the server."""

from __future__ import annotations

import logging
from pathlib import Path  # noqa: TC003 - Typer reads the signature
from typing import Annotated

import typer

__all__ = ["configure_logging", "main", "start"]


def start(
    data: Annotated[
        Path, typer.Option(help="Directory of the database, the key and the lock; made when missing.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8041,
    *,
    write_credentials: Annotated[
        bool,
        typer.Option(
            "--write-credentials",
            help="Write the key where public clients look: under XDG_CONFIG_HOME, else ~/.config.",
        ),
    ] = False,
) -> None:
    """Start the Metrics server and serve until SIGTERM or SIGINT."""
    from infra.server.datadir import DataDir, Unusable
    from infra.server.serving import serve

    configure_logging()
    try:
        serve(DataDir(data.absolute()), host=host, port=port, credentials=write_credentials)
    except Unusable as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def configure_logging() -> None:
    """Log to standard error, as a service does."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)


def main() -> None:
    """Run the command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(start)
    app()
