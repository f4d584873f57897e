"""The command `syvain-metrics`: its groups of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from infra.client.ending import run_and_exit
from infra.metrics.commands import (
    annotation,
    auth,
    experiment,
    exporting,
    folder,
    importing,
    key,
    member,
    metric,
    server,
    view,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "main"]

app = typer.Typer(
    help="The Metrics server: run it, and read and arrange what it keeps.",
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
for _name, _module in {
    "server": server,
    "auth": auth,
    "key": key,
    "member": member,
    "folder": folder,
    "experiment": experiment,
    "metric": metric,
    "annotation": annotation,
    "view": view,
}.items():
    app.add_typer(_module.app, name=_name, no_args_is_help=True)
app.command(name="export")(exporting.export)
app.command(name="import")(importing.import_)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line (unset: the process's own) and exit as `infra.client.ending` says."""
    run_and_exit(app, "syvain-metrics", argv)


if __name__ == "__main__":
    main()
