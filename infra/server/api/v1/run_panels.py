"""GET /api/v1/runs/{id}/telemetry/panels: panels of a Telemetry tab, at the width they are drawn at."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
import orjson
from anyio import to_thread
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.v1.requests import answer, query_of
from infra.server.api.v1.run_shown import run_of
from infra.server.api.v1.runs import CODES
from infra.server.board import board
from infra.server.plots import Window, gather, plot
from infra.server.store import deflated, experiments, telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.server.api.streaming import Turns
    from infra.server.store.database import AnyRow
    from infra.server.store.streams import Reads
    from runtime.telemetry.layout import Panel

__all__ = ["MAX_PANELS", "router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}/telemetry", route_class=GuardedRoute)
MAX_PANELS = 16
"""So many are drawn at once."""


class WantedPanels(msgspec.Struct):
    """Which panels are wanted, by their places from 0, and how wide they are drawn, in pixels.

    `first` and `last` are what is looked at along x; left out, it is all of it.
    """

    panels: Annotated[str, Meta(pattern=r"^\d{1,5}(,\d{1,5}){0,15}$")] = "0"
    width: Annotated[int, Meta(ge=1, le=4000)] = 800
    first: float | None = None
    last: float | None = None


class Line(msgspec.Struct):
    """One key of a panel as columns of buckets along x: a point each, or those of a pixel.

    `x` is the last point's of a bucket, and so is `last`. The buckets in `breaks` are not joined to the one
    before. Of the `points` that carry the key, `without_x` are left off, and `hidden` ones have no place on
    a logarithmic axis.
    """

    key: str
    points: int
    without_x: int
    hidden: int
    x: list[float]
    min: list[float]
    max: list[float]
    last: list[float]
    breaks: list[int]


class Begin(msgspec.Struct):
    """Where a later attempt begins."""

    attempt: int
    x: float


class DrawnPanel(msgspec.Struct):
    """A panel as it is laid out, with its lines. `x` null is a point's place in the run."""

    panel: int
    title: str
    x: str | None
    scale: Literal["linear", "log"]
    min: float | None
    max: float | None
    rule: float | None
    lines: list[Line]
    attempts: list[Begin]


class DrawnPanels(msgspec.Struct):
    """Panels drawn of the points up to `last_seq`; one that there is not is left out."""

    last_seq: int
    panels: list[DrawnPanel]


@router.get("/panels")
@needs("read", keyless=True)
@describe(Operation(data=DrawnPanels, query=WantedPanels, codes=CODES))
async def draw_panels(request: Request, run_id: str) -> Response:
    """Draw panels of a run's Telemetry tab: lowest, highest and last value of each pixel's points."""
    wanted = query_of(request, WantedPanels)
    store, organisation = store_of(request), principal_of(request).organisation
    row = await store.read(lambda connection: run_of(request, connection, run_id))
    reads = experiments.while_there(store.read_now, organisation.id, row.experiment_uid)

    def draw() -> bytes:
        data = {"last_seq": row.last_seq, "panels": _drawn(reads, row, wanted)}
        return orjson.dumps({"data": data, "error": None}, option=orjson.OPT_SERIALIZE_NUMPY)

    async with _turns(request):
        return answer(await to_thread.run_sync(draw))


def _turns(request: Request) -> Turns:
    """Return the application's turns at drawing: each takes seconds of a core and hundreds of MiB at most."""
    return cast("Turns", request.app.state.drawings)


def _drawn(reads: Reads, row: AnyRow, wanted: WantedPanels) -> list[dict[str, Any]]:
    laid_out = board(row.layout, telemetry.standing(row)["keys"]).panels
    places = [place for place in map(int, wanted.panels.split(",")) if place < len(laid_out)]
    keys = set(chain.from_iterable(_keys(laid_out[place]) for place in places))
    marks = [(mark[0], mark[1]) for mark in json.loads(row.attempts)]
    columns = gather(_points(reads, row) if places else (), keys, marks)
    window = Window(wanted.first, wanted.last)
    return [
        _said(place, laid_out[place]) | plot(columns, laid_out[place], width=wanted.width, window=window)
        for place in places
    ]


def _keys(panel: Panel) -> list[str]:
    return [*panel.y, *([] if panel.x is None else [panel.x])]


def _points(reads: Reads, row: AnyRow) -> Iterator[list[dict[str, float]]]:
    """Yield a run's points, a block of them at a time."""
    for part in telemetry.parts(reads, row.id, after=0, last=row.last_seq):
        lines = deflated.unpack(part.data).rstrip(b"\n")
        yield [line["data"] for line in orjson.loads(b"[" + lines.replace(b"\n", b",") + b"]")]


def _said(place: int, panel: Panel) -> dict[str, Any]:
    return {
        "panel": place,
        "title": panel.title,
        "x": panel.x,
        "scale": panel.scale,
        "min": panel.min,
        "max": panel.max,
        "rule": panel.rule,
    }
