"""`slugline train`: an experiment file becomes a run, now or at certain times."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run_output import Follow, Json, tell
from flows.stack import use_stack
from infra.local import cli as local
from runtime.errors import Rejected

if TYPE_CHECKING:
    from flows.parameters import TrainParameters

__all__ = ["train"]


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
    from runtime.cli.request import check_target

    for target in metrics or ():
        check_target(target, source="--metrics")
    parameters = from_json({name: value for name, value in values.items() if value is not None})
    if cron is not None and follow:
        raise Rejected("--follow follows one run, and --cron schedules many: leave one of them out.")
    # Prefect reads its settings when it is imported: the address comes first.
    use_stack(data)
    from flows.check import check_folder, check_store

    check_store(parameters.location)
    check_folder(parameters.folder)
    if cron is not None:
        from flows.schedules import check_cron

        check_cron(cron)
    parameters = _shipped(parameters)
    if cron is not None:
        _cron(parameters, cron, title=str(file.expanduser().resolve()))
        return
    from flows.scheduling import schedule

    tell(schedule(parameters), "scheduled", follow=follow, as_json=as_json)


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
