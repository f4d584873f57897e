"""`syvain-metrics annotation`: what was said about an experiment, and saying something."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.client.errors import Rejected
from infra.client.output import print_json, print_table, print_text, time_of
from infra.metrics.commands._common import ExperimentName, Json, connect, json_object

__all__ = ["app"]

app = typer.Typer(help="List and add annotations.")

_MAX_LISTED = 10_000
"""So many the server gives at once."""


@app.command(name="list")
def list_(
    experiment: ExperimentName,
    *,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=_MAX_LISTED, help="At most so many.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the annotations of an experiment, the newest first."""
    from infra.metrics.find import experiment_id

    with connect() as api:
        here = experiment_id(api, experiment)
        found = api.get(f"experiments/{here}/annotations", limit=limit)["annotations"]
    if as_json:
        print_json(found)
        return
    print_table(
        ("TIME", "STEP", "ANNOTATION", "META"),
        [
            (
                time_of(one["created_at_ms"]),
                one["metadata"].get("step"),
                one["annotation"],
                {key: value for key, value in one["metadata"].items() if key != "step"} or None,
            )
            for one in found
        ],
    )


@app.command()
def add(
    experiment: ExperimentName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")],
    *,
    step: Annotated[int | None, typer.Option(metavar="N", help="The step that it is about.")] = None,
    meta: Annotated[str | None, typer.Option(metavar="JSON", help="A JSON object that goes with it.")] = None,
    as_json: Json = False,
) -> None:
    """Add an annotation, at this moment, and print its id."""
    from infra.metrics.find import experiment_id

    metadata = {} if meta is None else dict(json_object(meta, "--meta"))
    if step is not None:
        metadata["step"] = _checked_step(step)
    with connect() as api:
        here = experiment_id(api, experiment)
        made = api.post(f"experiments/{here}/annotations", {"annotation": text, "metadata": metadata})
    if as_json:
        print_json(made["annotation"])
    else:
        print_text(made["annotation"]["id"])


def _checked_step(step: int) -> int:
    """Return a step. In metadata the server would take any number, a larger one as the nearest double.

    Raises:
        Rejected: it is none.
    """
    from runtime.events.limits import check_step

    try:
        check_step(step)
    except ValueError as error:
        raise Rejected(f"--step: {error}") from error
    return step
