"""POST /api/v2/query/series: the points of an experiment as a stream of lines."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from infra.server.api.body import read_body
from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.envelopes import Envelope, convert, decode_loosely, reply_line
from infra.server.refusals import Refused
from infra.server.store import experiments, series

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from infra.server.store.series import Series
    from infra.server.store.store import Store

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute)
_EVENT = "syvain.v2.query.experimentseries"
_MAX_NAMES = 1000
_FRAME_POINTS = 8192


class _Filter(msgspec.Struct):
    metadataKey: str  # noqa: N815 - the wire's names, here and below
    metadataValue: str | None = None  # noqa: N815

    def matches(self, metadata: dict[str, str]) -> bool:
        """Whether a metadata map has the key and, where one is asked for, the value."""
        value = metadata.get(self.metadataKey)
        return value is not None and self.metadataValue in {None, value}


class _Query(msgspec.Struct):
    experimentId: str  # noqa: N815
    seriesNames: list[str] | None = None  # noqa: N815
    filter: list[_Filter] = []
    xAxis: Literal["step", "timestamp"] = "step"  # noqa: N815


_Envelope = Envelope[_Query]


@router.post("/api/v2/query/series")
@needs("read")
async def query_series(request: Request) -> Response:
    """Stream every partition's points along the axis, a summary for each name, and `done` last."""
    organisation = principal_of(request).organisation
    envelope = _decoded(decode_loosely(await read_body(request)))
    lines = _lines(store_of(request), organisation.id, envelope)
    return StreamingResponse(_in_threads(lines), media_type="application/x-ndjson")


def _decoded(body: Any) -> _Envelope:
    try:
        envelope = convert(body, _Envelope)
    except msgspec.ValidationError as error:
        raise Refused("malformed_request", str(error)) from error
    if envelope.event != _EVENT:
        raise Refused("malformed_request", f"event must be {_EVENT}, got {envelope.event[:80]!r}")
    if envelope.data.seriesNames is not None and len(envelope.data.seriesNames) > _MAX_NAMES:
        raise Refused("malformed_request", f"seriesNames takes at most {_MAX_NAMES:,} names")
    return envelope


async def _in_threads(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (line := await to_thread.run_sync(next, lines, None)) is not None:
        yield line


def _lines(store: Store, organisation_id: int, envelope: _Envelope) -> Iterator[bytes]:
    """Yield the lines. What goes wrong on the way is the last of them: the status is sent already."""
    try:
        query = envelope.data
        found = store.read_now(
            lambda connection: list(
                series.of_experiment(
                    connection,
                    experiments.find(connection, organisation_id, query.experimentId).id,
                    query.seriesNames,
                )
            )
        )
        for reply in _replies(store, query, found):
            yield reply_line(envelope.messageId, reply)
    except Refused as refusal:
        yield reply_line(envelope.messageId, refusal)


def _replies(store: Store, query: _Query, found: list[Series]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield data and summaries, reading one series at a time: a slow client holds no view of the database."""
    totals = {"series": 0, "batches": 0, "points": 0}
    missing = dict.fromkeys(query.seriesNames or ())
    for name, group in groupby(found, key=lambda one: one.name):
        missing.pop(name, None)
        batches = points = 0
        for one in group:
            if not all(condition.matches(one.metadata) for condition in query.filter):
                continue
            for frame in _frames(store, query, one):
                batches += 1
                points += len(frame["step"])
                yield "query.series.data", _data(query, one, frame)
        if points or query.seriesNames is not None:
            yield _summary(name, batches, points, totals)
    for name in missing:
        yield _summary(name, 0, 0, totals)
    yield "query.experimentseries.done", totals


def _summary(name: str, batches: int, points: int, totals: dict[str, int]) -> tuple[str, dict[str, Any]]:
    totals["series"] += 1
    totals["batches"] += batches
    totals["points"] += points
    return "query.experimentseries.series", {"seriesName": name, "batches": batches, "points": points}


def _data(query: _Query, one: Series, frame: dict[str, Any]) -> dict[str, Any]:
    return {
        "experimentId": query.experimentId,
        "seriesName": one.name,
        "metadata": one.metadata,
        "data": frame,
    }


def _frames(store: Store, query: _Query, one: Series) -> Iterator[dict[str, Any]]:
    points = store.read_now(lambda connection: series.points_of(connection, one.id)).along(query.xAxis)
    for first in range(0, len(points.steps), _FRAME_POINTS):
        part = slice(first, first + _FRAME_POINTS)
        yield {
            "step": points.steps[part],
            "timestampMs": points.timestamps_ms[part],
            "value": points.values[part],
        }
