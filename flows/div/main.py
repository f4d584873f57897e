"""The command `div`: its commands, one a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from flows.div import ending, logs, run, secret, show, telemetry
from infra.client.ending import run_and_exit

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "main"]

app = typer.Typer(
    help="A directory becomes a run, and the numbers that it writes are read.",
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
app.command(context_settings=run.OPTIONS)(run.run)
app.command(name="list")(show.list_)
app.command()(show.show)
app.command()(show.files)
app.command()(logs.logs)
app.command()(ending.cancel)
app.command()(ending.resume)
app.add_typer(secret.app, name="secret")
app.command()(telemetry.telemetry)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line (unset: the process's own) and exit as `infra.client.ending` says."""
    run_and_exit(app, "div", argv)


if __name__ == "__main__":
    main()
