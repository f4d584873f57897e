"""`slugline`: the stack on one machine, and the runs that Prefect schedules."""

import json
import os
import re
import shutil
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.stack import use_stack
from infra.local import cli as local
from infra.local.errors import StackError
from runtime import __version__
from runtime.errors import Rejected, RunError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flows.parameters import TrainParameters
    from flows.scheduling import RunView

__all__ = ["app", "main"]

NO_NUMBER = r"Input should be a valid integer.*"
"""What the command line's library says of a text where a number belongs."""

WITH_REASON = ("Failed", "Crashed", "Waiting", "AwaitingRetry")
"""The states of which a list shows the message."""

app = typer.Typer(
    help="Training runs that survive being killed: the stack on this machine, and the runs on it.",
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
app.add_typer(local.app)


def _version(asked: bool) -> None:  # noqa: FBT001 - how an option's callback is called
    if asked:
        typer.echo(f"slugline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    pass


Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print the run's log until it is final; exit by how it ended.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Slug = Annotated[str, typer.Argument(help="The run's slug.")]


def main(argv: "Sequence[str] | None" = None) -> None:
    """Run the command line and exit: 0 done, 1 the run failed, 2 a mistake of yours, 75 the surroundings."""
    sys.exit(_run(sys.argv[1:] if argv is None else list(argv)))


def _run(argv: list[str]) -> int:
    try:
        return int(app(argv, prog_name="slugline", standalone_mode=False) or 0)
    except typer.TyperException as error:
        # An empty text: the help was shown instead.
        message = re.sub(NO_NUMBER, "it must be a whole number", " ".join(error.format_message().split()))
        if message:
            typer.echo(f"slugline: {message}", err=True)
        return error.exit_code
    except (StackError, RunError) as error:
        typer.echo(f"slugline: {error}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # Whoever read has enough (`slugline logs | head`); nothing may be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


@app.command()
def train(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")],
    *,
    slug: Annotated[
        str | None, typer.Option(metavar="SLUG", help="The run's name. Unset: the file's and the time.")
    ] = None,
    variant: Annotated[str | None, typer.Option(metavar="NAME", help="A variant of the file.")] = None,
    knob: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a knob; repeat for more.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="How many steps.")] = None,
    eval_every: Annotated[int | None, typer.Option(metavar="N", help="Evaluate every N steps.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="How many GPUs to lease.")] = None,
    location: Annotated[
        str | None,
        typer.Option(metavar="L", help="Where checkpoints go: s3://bucket/prefix or an absolute path."),
    ] = None,
    folder: Annotated[str | None, typer.Option(metavar="PATH", help="The folder in Metrics.")] = None,
    metrics: Annotated[
        list[str] | None, typer.Option(metavar="TARGET", help="A further target; repeat for more.")
    ] = None,
    interruptions: Annotated[
        int | None, typer.Option(metavar="N", help="Kills in a row that are resumed.", show_default="10")
    ] = None,
    failures: Annotated[
        int | None, typer.Option(metavar="N", help="Own errors that are tried again.", show_default="2")
    ] = None,
    notice: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Time to save after SIGTERM.", show_default="20"),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Schedule at these times instead of now; --slug names it."),
    ] = None,
    follow: Follow = False,
    as_json: Json = False,
    data: local.Data = None,
) -> None:
    """Schedule a run of FILE now, or by a cron expression."""
    values = {
        "experiment": str(_experiment_file(file)),
        "slug": _slug_of(file, timed=cron is None) if slug is None else slug,
        "variant": variant,
        "knobs": _knobs(knob or []),
        "precision": precision,
        "steps": steps,
        "eval_every": eval_every,
        "device": device,
        "gpus": gpus,
        "location": location,
        "folder": folder,
        "targets": tuple(metrics or ()),
        "interruptions": interruptions,
        "failures": failures,
        "notice_s": notice,
    }
    # Before anything of Prefect is loaded: a bad value shows at once.
    from flows.parameters import from_json

    parameters = from_json({name: value for name, value in values.items() if value is not None})
    if cron is not None and follow:
        raise Rejected("--follow follows one run, and --cron schedules many: leave one of them out.")
    # Prefect reads its settings when it is imported: the address comes first.
    use_stack(data)
    from flows.check import check_store

    check_store(parameters.location)
    if cron is not None:
        from flows.schedules import check_cron

        check_cron(cron)
    parameters = _shipped(parameters)
    if cron is not None:
        _cron(parameters, cron, title=str(file.expanduser().resolve()))
        return
    from flows.scheduling import schedule

    _told(schedule(parameters), "scheduled", follow=follow, as_json=as_json)


@app.command()
def resume(
    slug: Slug,
    *,
    follow: Follow = False,
    as_json: Json = False,
    data: local.Data = None,
) -> None:
    """Schedule a run that ended (failed, cancelled) again: it goes on from its newest checkpoint."""
    use_stack(data)
    from flows import scheduling

    _told(scheduling.resume(slug), "scheduled again", follow=follow, as_json=as_json)


@app.command()
def cancel(
    slug: Slug,
    *,
    as_json: Json = False,
    data: local.Data = None,
) -> None:
    """Cancel a run. It saves within its notice, and stays cancelled until you resume it."""
    use_stack(data)
    from flows import scheduling

    _told(scheduling.cancel(slug), "cancelling", follow=False, as_json=as_json)


@app.command(name="follow")
def follow_(
    slug: Slug,
    *,
    data: local.Data = None,
) -> None:
    """Print a run's log since it was last scheduled, until it is final; exit by how it ended."""
    use_stack(data)
    _follow(slug, err=False)


@app.command(name="list")
def list_(
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="How many, newest first.")] = 50,
    as_json: Json = False,
    data: local.Data = None,
) -> None:
    """List the runs: slug, state, when, and where the checkpoints are."""
    use_stack(data)
    from flows.scheduling import list_runs

    runs = list_runs(limit=limit)
    if as_json:
        typer.echo(json.dumps([_plain(run) for run in runs]))
        return
    for line in _table(runs, columns=shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        typer.echo(line)


def _table(runs: "Sequence[RunView]", *, columns: int | None) -> "Iterator[str]":
    """Yield a line for each run, and one below it that says why a run is not well, cut to `columns`."""
    slugs = max(map(len, ["SLUG", *(run.slug for run in runs)]))
    states = max(map(len, ["STATE", *(run.state for run in runs)]))
    yield f"{'SLUG':<{slugs}}  {'STATE':<{states}}  {'SCHEDULED (UTC)':<19}  LOCATION"
    for run in runs:
        row = f"{run.slug:<{slugs}}  {run.state:<{states}}  {_short(run.scheduled):<19}  {run.location or ''}"
        yield row.rstrip()
        if run.message and run.state in WITH_REASON:
            yield f"  {' '.join(run.message.split())}"[:columns]


def _shipped(parameters: "TrainParameters") -> "TrainParameters":
    """Check the file and ship its directory; with no place to ship to, workers must have the file."""
    from flows.check import check_experiment
    from flows.shipment import ship_experiment, trees_of

    trees = trees_of(parameters, os.environ)
    if trees is None:
        check_experiment(parameters, os.environ)
        typer.echo(
            "slugline: not shipped, as SLUGLINE_LOCATION is not set: every worker must have "
            f"{parameters.experiment} at this path",
            err=True,
        )
        return parameters
    shipment = ship_experiment(parameters, trees, os.environ)
    typer.echo(f"slugline: {shipment}", err=True)
    if not trees.startswith("s3://"):
        typer.echo(
            f"slugline: {trees} is a directory of this host: only a worker here can take the run", err=True
        )
    return shipment.parameters


def _cron(parameters: "TrainParameters", cron: str, *, title: str) -> None:
    from flows.schedules import schedule_cron

    page = schedule_cron(parameters, title=title, cron=cron)
    typer.echo(f"{parameters.slug}-<time>: scheduled at {cron} (UTC): {page}")


def _told(run: "RunView", what: str, *, follow: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_plain(run)))
    else:
        typer.echo(f"{run.slug}: {what}: {run.page}")
    if follow:
        _follow(run.slug, err=as_json)


def _follow(slug: str, *, err: bool) -> None:
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


def _experiment_file(file: Path) -> Path:
    path = file.expanduser().resolve()
    if not path.is_file():
        raise Rejected(f"there is no experiment file {path}: name a Python file")
    if path.suffix != ".py":
        raise Rejected(f"an experiment file ends in .py, got {path.name}")
    return path


def _slug_of(file: Path, *, timed: bool) -> str:
    """The file's name, with the time of now where each scheduling is a run of its own."""
    return f"{file.stem}-{datetime.now(UTC):%Y%m%d-%H%M%S}" if timed else file.stem


def _knobs(given: list[str]) -> dict[str, str]:
    knobs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Rejected(f"--knob takes NAME=VALUE, got {text!r}")
        knobs[name] = value
    return knobs


def _plain(run: "RunView") -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(run).items()
    }


def _short(when: datetime | None) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if when else ""


if __name__ == "__main__":
    main()
