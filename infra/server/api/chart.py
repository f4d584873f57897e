"""GET /api/experiments/{id}/chart: one metric as curves, at the width it is drawn at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request, Response

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.charts import PointCache, buckets, newest_copies, own_copies
from infra.server.refusals import Refused
from infra.server.store import experiments, series, sessions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from infra.server.store.series import Points, Series

    Shown = Sequence[tuple[Series, Points]]
    Curves = Iterator[tuple[dict[str, Any], Points]]

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute)
_MAX_CURVES = 50


@router.get("/api/experiments/{experiment_id}/chart")
@needs("read", keyless=True)
async def chart(
    request: Request,
    experiment_id: str,
    metric: Annotated[str, Query(max_length=256)],
    width: Annotated[int, Query(ge=1, le=4000)] = 800,
    copies: Literal["newest", "all"] = "newest",
) -> Response:
    """Return the curves of a metric: min, max and last of every bucket of steps.

    One a partition, the newest attempt's copy of each step; with `copies=all` one an attempt that wrote it.
    """
    organisation = principal_of(request).organisation
    cache: PointCache = request.app.state.point_cache

    def read(connection: Connection) -> bytes:
        row = experiments.find(connection, organisation.id, experiment_id)
        found = list(series.of_experiment(connection, row.id, [metric]))
        if not found:
            raise Refused("metric_not_found", "the experiment has no metric of this name")
        shown = [(one, cache.read(connection, one)) for one in found[:_MAX_CURVES]]
        draw = _newest if copies == "newest" else _of_each_attempt
        curves = [
            {**head, "first": curve.steps[0], **buckets(curve, width)}
            for head, curve in draw(connection, row.id, shown)
        ]
        count = len(curves) + len(found) - len(shown)
        body = {"metric": metric, "partitions": curves[:_MAX_CURVES], "partitionCount": count}
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)

    return Response(await store_of(request).read(read), media_type="application/json")


def _newest(connection: Connection, experiment_id: int, shown: Shown) -> Curves:
    """Yield the curve of each partition, after what tells it from the others."""
    ranks = sessions.ranks(connection, experiment_id)
    for one, points in shown:
        yield {"metadata": one.metadata}, newest_copies(points, ranks)


def _of_each_attempt(connection: Connection, experiment_id: int, shown: Shown) -> Curves:
    numbers = sessions.attempts(connection, experiment_id)
    for one, points in shown:
        for attempt, curve in own_copies(points, numbers):
            yield {"metadata": one.metadata, "attempt": attempt}, curve
