"""What `slugline` prints of runs: one that it has done something to, its log, a list."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flows.scheduling import RunView

__all__ = ["Follow", "Json", "follow_run", "plain", "table", "tell"]

WITH_REASON = ("Failed", "Crashed", "Waiting", "AwaitingRetry")
"""The states of which a list shows the message."""

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print the run's log until it is final; exit by how it ended.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def tell(run: RunView, what: str, *, follow: bool, as_json: bool) -> None:
    """Print what was done to a run, and its log until it is final if that is wanted."""
    if as_json:
        typer.echo(json.dumps(plain(run)))
    else:
        typer.echo(f"{run.slug}: {what}: {run.page}")
    if follow:
        follow_run(run.slug, err=as_json)


def follow_run(slug: str, *, err: bool) -> None:
    """Print a run's log until it is final, on standard error if `err`; exit by how it ended."""
    from flows import following, scheduling

    try:
        for line in following.follow(slug):
            typer.echo(line, err=err)
    except KeyboardInterrupt:
        typer.echo(
            f"{slug} goes on; slugline follow {slug} shows it again, slugline cancel {slug} ends it", err=True
        )
        raise
    raise typer.Exit(_exit_code(scheduling.find_run(slug).state))


def _exit_code(state: str) -> int:
    """0 completed, 130 cancelled, 1 everything else."""
    return {"Completed": 0, "Cancelled": 130}.get(state, 1)


def table(runs: Sequence[RunView], *, columns: int | None) -> Iterator[str]:
    """Yield a line for each run, and one below it that says why a run is not well, cut to `columns`."""
    slugs = max(map(len, ["SLUG", *(run.slug for run in runs)]))
    states = max(map(len, ["STATE", *(run.state for run in runs)]))
    yield f"{'SLUG':<{slugs}}  {'STATE':<{states}}  {'SCHEDULED (UTC)':<19}  LOCATION"
    for run in runs:
        row = f"{run.slug:<{slugs}}  {run.state:<{states}}  {_short(run.scheduled):<19}  {run.location or ''}"
        yield row.rstrip()
        if run.message and run.state in WITH_REASON:
            yield f"  {' '.join(run.message.split())}"[:columns]


def plain(run: RunView) -> dict[str, Any]:
    """Return a run as JSON has it."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(run).items()
    }


def _short(when: datetime | None) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if when else ""
