"""`syvain-metrics experiment`: what there is, and where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.client.output import print_fields, print_json, print_table, say, time_of
from infra.metrics.commands._common import ExperimentName, Json, Yes, agreed, connect

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["app"]

app = typer.Typer(help="List, show, move, rename and delete experiments. A slug or an id names one.")


@app.command(name="list")
def list_(
    *,
    folder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Only those directly in this folder (path or id).")
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those whose slug or display name contains this.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only created, running, done or error.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """List experiments, those that changed last first."""
    from infra.metrics.find import experiments

    with connect() as api:
        found = experiments(api, folder=folder, search=search, status=status, limit=limit)
    if as_json:
        print_json(found)
        return
    print_table(
        ("SLUG", "NAME", "STATUS", "UPDATED", "FOLDER", "ID"),
        [
            (
                one["slug"],
                one.get("display_name"),
                _status(one),
                time_of(one["updated_at_ms"]),
                _folder_path(one),
                one["id"],
            )
            for one in found
        ],
    )


@app.command()
def show(experiment: ExperimentName, *, as_json: Json = False) -> None:
    """Show one experiment: status, times, description and configuration."""
    from infra.metrics.find import experiment as read
    from infra.metrics.find import experiment_id

    with connect() as api:
        record = read(api, experiment_id(api, experiment))
    if as_json:
        print_json(record)
        return
    times = ("created", "updated", "started", "done", "last_heartbeat", "last_event")
    print_fields(
        {
            "slug": record["slug"],
            "name": record.get("display_name"),
            "id": record["id"],
            "folder": _folder_path(record),
            "url": record["url"],
            "status": _status(record),
            "error": record.get("error_name"),
            "detail": record.get("error_detail"),
            "description": record.get("description") or None,
            **{name.replace("_", " "): time_of(record.get(f"{name}_at_ms")) for name in times},
            "meta": record.get("metadata"),
        }
    )


@app.command()
def move(
    experiment: ExperimentName,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to: a path, an id, or / for none.")],
) -> None:
    """Put an experiment into a folder."""
    from infra.metrics.find import experiment_id, folder_ref

    target = folder_ref(folder)
    with connect() as api:
        here = experiment_id(api, experiment)
        api.patch(f"experiments/{here}", {"folder_id": None if target == "/" else target})
    say(f"moved {experiment} to {folder}")


@app.command()
def rename(
    experiment: ExperimentName,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What people read; an empty one takes the name away.")
    ],
) -> None:
    """Give an experiment a display name. Its slug never changes."""
    from infra.metrics.find import experiment_id

    with connect() as api:
        here = experiment_id(api, experiment)
        api.patch(f"experiments/{here}", {"display_name": name or None})
    say(f"{experiment} is shown as {name}" if name else f"{experiment} is shown by its slug")


@app.command()
def delete(experiment: ExperimentName, *, yes: Yes = False) -> None:
    """Delete an experiment with its points and annotations. Nothing brings it back."""
    from infra.metrics.find import experiment_id

    with connect() as api:
        here = experiment_id(api, experiment)
        agreed(f"Delete {experiment} ({here}) with everything in it?", yes=yes)
        api.delete(f"experiments/{here}")
    say(f"deleted {experiment}")


def _status(record: Mapping[str, Any]) -> str:
    return f"{record['status']}, quiet" if record.get("quiet") else str(record["status"])


def _folder_path(record: Mapping[str, Any]) -> str:
    folder = record.get("folder")
    return str(folder["path_name"]) if folder else "/"
