"""GET /api/experiments/{id}/chart: one metric as curves, at the width it is drawn at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response

from infra.server.api.context import store_of, viewer_of
from infra.server.charts import PointCache, buckets, newest_copies
from infra.server.refusals import Refused
from infra.server.store import experiments, series, sessions

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["router"]

router = APIRouter()
_MAX_PARTITIONS = 50


@router.get("/api/experiments/{experiment_id}/chart")
async def chart(
    request: Request,
    experiment_id: str,
    metric: Annotated[str, Query(max_length=256)],
    width: Annotated[int, Query(ge=1, le=4000)] = 800,
) -> Response:
    """Return each partition's curve, the newest attempt's: min, max and last of every bucket of steps."""
    organisation = await viewer_of(request)
    cache: PointCache = request.app.state.point_cache

    def read(connection: Connection) -> bytes:
        row = experiments.find(connection, organisation.id, experiment_id)
        return _chart(connection, cache, row.id, metric, width)

    return Response(await store_of(request).read(read), media_type="application/json")


def _chart(connection: Connection, cache: PointCache, experiment_id: int, metric: str, width: int) -> bytes:
    found = list(series.of_experiment(connection, experiment_id, [metric]))
    if not found:
        raise Refused("metric_not_found", "the experiment has no metric of this name")
    ranks = sessions.ranks(connection, experiment_id)
    partitions: list[dict[str, Any]] = []
    for one in found[:_MAX_PARTITIONS]:
        curve = newest_copies(cache.read(connection, one), ranks)
        partitions.append({"metadata": one.metadata, "first": curve.steps[0], **buckets(curve, width)})
    body = {"metric": metric, "partitions": partitions, "partitionCount": len(found)}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
