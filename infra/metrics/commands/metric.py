"""`syvain-metrics metric`: the names that an experiment measured, and their points."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from infra.client.errors import Refused, Rejected
from infra.client.output import compact, print_json, print_table, shown
from infra.metrics.commands._common import ExperimentName, Json, Newest, Where, conditions, connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.metrics.api import Frame

__all__ = ["app"]

app = typer.Typer(help="List the metrics of an experiment, and get their points.")


@app.command(name="list")
def list_(experiment: ExperimentName, *, as_json: Json = False) -> None:
    """List the metrics with the metadata keys and values that they have."""
    from infra.metrics.find import experiment_id

    with connect() as api:
        series = api.ask("query.catalog", experimentId=experiment_id(api, experiment))["series"]
    if as_json:
        print_json(
            [
                {
                    "name": one["seriesName"],
                    "metadata": {key["key"]: key["values"] for key in one["metadata"]},
                }
                for one in series
            ]
        )
        return
    print_table(
        ("METRIC", "METADATA"),
        [
            (
                one["seriesName"],
                "  ".join(f"{key['key']}={','.join(key['values'])}" for key in one["metadata"]),
            )
            for one in series
        ],
    )


@app.command()
def get(
    experiment: ExperimentName,
    name: Annotated[str, typer.Argument(metavar="METRIC", help="The metric's name.")],
    *,
    where: Where = None,
    newest: Newest = False,
    axis: Annotated[str, typer.Option(metavar="AXIS", help="Order by step or timestamp.")] = "step",
    as_json: Json = False,
) -> None:
    """Print the points of a metric, in the order of its steps; with --json one object on each line."""
    if axis not in {"step", "timestamp"}:
        raise Rejected(f"--axis must be step or timestamp, got {axis!r}")
    from infra.metrics.find import experiment_id

    with connect() as api:
        frames = api.points(
            experiment_id(api, experiment), names=[name], where=conditions(where), axis=axis, newest=newest
        )
        lines = _json_lines(frames) if as_json else _text_lines(frames)
        empty = True
        for text in lines:
            sys.stdout.write(text)
            empty = False
    if empty:
        raise Refused(
            f"{experiment} has no points of {name!r} there: syvain-metrics metric list shows what it has"
        )


def _json_lines(frames: Iterator[Frame]) -> Iterator[str]:
    for frame in frames:
        ends = compact(frame.metadata)
        for step, at_ms, value in _rows(frame):
            shown_step = "null" if step is None else step
            yield f'{{"step":{shown_step},"timestamp_ms":{at_ms},"value":{value!r},"metadata":{ends}}}\n'


def _text_lines(frames: Iterator[Frame]) -> Iterator[str]:
    header = f"{'STEP':>10}  {'TIMESTAMP_MS':>13}  {'VALUE':<24}METADATA\n"
    for frame in frames:
        yield header
        header = ""
        ends = shown(frame.metadata)
        for step, at_ms, value in _rows(frame):
            yield f"{'' if step is None else step:>10}  {at_ms:>13}  {value!r:<24}{ends}\n"


def _rows(frame: Frame) -> Iterator[tuple[int | None, int, float]]:
    return zip(frame.data.step, frame.data.timestampMs, frame.data.value, strict=True)
