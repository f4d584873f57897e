"""GET /api/experiments/{id}/chart: one metric as curves, at the width it is drawn at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import orjson
from fastapi import APIRouter, Query, Request, Response

from infra.server import charts
from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.charts import Window
from infra.server.refusals import Refused
from infra.server.store import experiments, series, sessions
from runtime.events.limits import MAX_STEP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from infra.server.charts import Curve, Drawing

    Shown = Sequence[tuple[dict[str, str], Drawing]]
    Curves = Iterator[tuple[dict[str, Any], Curve]]

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute)
_MAX_CURVES = 50
_CHART = {
    "type": "object",
    "required": ["metric", "partitions", "partitionCount"],
    "properties": {
        "metric": {"type": "string"},
        "partitions": {"type": "array", "items": {"type": "object", "required": ["metadata", "first"]}},
        "partitionCount": {"type": "integer", "minimum": 0},
    },
}


class ChartQuery(msgspec.Struct):
    """The parameters of `chart`, for the API description."""

    metric: Annotated[str, msgspec.Meta(max_length=256)]
    width: Annotated[int, msgspec.Meta(ge=1, le=4000)] = 800
    copies: Literal["newest", "all"] = "newest"
    first: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)] = 0
    last: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)] = MAX_STEP


@router.get("/api/experiments/{experiment_id}/chart")
@needs("read", keyless=True)
@describe(
    Operation(
        reply=_CHART,
        query=ChartQuery,
        codes=("experiment_not_found", "metric_not_found", "malformed_request"),
    )
)
async def chart(
    request: Request,
    experiment_id: str,
    *,
    metric: Annotated[str, Query(max_length=256)],
    width: Annotated[int, Query(ge=1, le=4000)] = 800,
    copies: Literal["newest", "all"] = "newest",
    first: Annotated[int, Query(ge=0, le=MAX_STEP)] = 0,
    last: Annotated[int, Query(ge=0, le=MAX_STEP)] = MAX_STEP,
) -> Response:
    """Return the curves of a metric: min, max and last of every bucket of steps from `first` to `last`.

    One a partition, the newest attempt's copy of each step; with `copies=all` one an attempt that wrote it.
    """
    organisation = principal_of(request).organisation

    def read(connection: Connection) -> bytes:
        row = experiments.find(connection, organisation.id, experiment_id)
        found = list(series.of_experiment(connection, row.id, [metric]))
        if not found:
            raise Refused("metric_not_found", "the experiment has no metric of this name")
        window = Window(first, last)
        shown = [(one.metadata, charts.load(connection, one, window)) for one in found[:_MAX_CURVES]]
        curves = [
            {**head, "first": curve.first[0], **charts.buckets(curve, width)}
            for head, curve in _curves(connection, row.id, shown, width, copies)
            if len(curve)
        ]
        count = len(curves) + len(found) - len(shown)
        body = {"metric": metric, "partitions": curves[:_MAX_CURVES], "partitionCount": count}
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)

    return Response(await store_of(request).read(read), media_type="application/json")


def _curves(
    connection: Connection, experiment_id: int, shown: Shown, width: int, copies: Literal["newest", "all"]
) -> Curves:
    """Yield the curves of each partition, after what tells them from the others."""
    if copies == "newest":
        ranks = sessions.ranks(connection, experiment_id)
        for metadata, drawing in shown:
            yield {"metadata": metadata}, drawing.curve(ranks, width=width)
        return
    numbers = sessions.attempts(connection, experiment_id)
    for metadata, drawing in shown:
        for attempt, of in _by_attempt(drawing.sessions(), numbers):
            yield {"metadata": metadata, "attempt": attempt}, drawing.curve({}, width=width, of=of)


def _by_attempt(found: set[int], numbers: Mapping[int, int]) -> list[tuple[int, list[int]]]:
    """Return the sessions of each attempt; one that is not numbered yet is of the latest."""
    latest = max(numbers.values(), default=0)
    attempts: dict[int, list[int]] = {}
    for session in sorted(found):
        attempts.setdefault(numbers.get(session, latest), []).append(session)
    return sorted(attempts.items())
