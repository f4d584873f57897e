"""POST /api/v2/query/series: the points of an experiment as a stream of lines."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from fastapi import APIRouter, Request, Response

from infra.server.api import event_schemas
from infra.server.api.body import aside
from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.envelopes import Envelope, convert, decode_loosely, reply_line
from infra.server.api.streaming import Streamed
from infra.server.refusals import Refused
from infra.server.store import experiments, series, sessions

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sqlalchemy import Connection

    from infra.server.store.series import Points, Series
    from infra.server.store.store import Store
    from infra.server.store.streams import Reads

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute)
_EVENT = "syvain.v2.query.experimentseries"
_MAX_NAMES = 1000
_MAX_FILTERS = 64


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
    copies: Literal["all", "newest"] = "all"  # ours: public clients do not send it


class Found(NamedTuple):
    """The series that were asked for, in the view in which they were looked up, and how they are to come."""

    series: list[Series]
    order: series.Order


_Envelope = Envelope[_Query]


@router.post("/api/v2/query/series")
@needs("read")
@describe(
    Operation(
        reply=event_schemas.SERIES_LINES,
        media="application/x-ndjson",
        body=event_schemas.SERIES_QUERY,
        codes=("invalid_event",),
        examples={"a metric": event_schemas.SERIES_EXAMPLE},
    )
)
async def query_series(request: Request) -> Response:
    """Stream every partition's points along the axis, a summary for each name, and `done` last."""
    organisation = principal_of(request).organisation
    envelope = await aside(request, _decoded)
    lines = _lines(store_of(request), organisation.id, envelope)
    return Streamed(request, lines, media_type="application/x-ndjson")


def _decoded(body: bytes) -> _Envelope:
    try:
        envelope = convert(decode_loosely(body), _Envelope)
    except msgspec.ValidationError as error:
        raise Refused("malformed_request", str(error)) from error
    if envelope.event != _EVENT:
        raise Refused("malformed_request", f"event must be {_EVENT}, got {envelope.event[:80]!r}")
    if envelope.data.seriesNames is not None and len(envelope.data.seriesNames) > _MAX_NAMES:
        raise Refused("malformed_request", f"seriesNames takes at most {_MAX_NAMES:,} names")
    if len(envelope.data.filter) > _MAX_FILTERS:
        raise Refused("malformed_request", f"filter takes at most {_MAX_FILTERS} conditions")
    return envelope


def _lines(store: Store, organisation_id: int, envelope: _Envelope) -> Generator[bytes]:
    """Yield the lines. What goes wrong on the way is the last of them: the status is sent already."""
    try:
        query = envelope.data
        found = store.read_now(lambda connection: _find(connection, organisation_id, query))
        reads = experiments.while_there(store.read_now, organisation_id, query.experimentId)
        for reply in _replies(reads, query, found):
            yield reply_line(envelope.messageId, reply)
    except Refused as refusal:
        yield reply_line(envelope.messageId, refusal)


def _find(connection: Connection, organisation_id: int, query: _Query) -> Found:
    row = experiments.find(connection, organisation_id, query.experimentId)
    ranks = sessions.ranks(connection, row.id) if query.copies == "newest" else None
    return Found(
        list(series.of_experiment(connection, row.id, query.seriesNames)),
        series.Order(query.xAxis, newest=ranks),
    )


def _replies(reads: Reads, query: _Query, found: Found) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield data and summaries, reading a part at a time: a slow client holds no view of the database."""
    totals = {"series": 0, "batches": 0, "points": 0}
    missing = dict.fromkeys(query.seriesNames or ())
    matching = [one for one in found.series if all(rule.matches(one.metadata) for rule in query.filter)]
    names = dict.fromkeys(one.name for one in found.series)
    frames = groupby(series.stream_each(reads, matching, found.order), key=lambda frame: frame[0].name)
    name, of_name = next(frames, (None, ()))
    for one in names:
        missing.pop(one, None)
        batches = points = 0
        if one == name:
            for partition, frame in of_name:
                batches += 1
                points += len(frame)
                yield "query.series.data", _data(query, partition, frame)
            name, of_name = next(frames, (None, ()))
        if points or query.seriesNames is not None:
            yield _summary(one, batches, points, totals)
    for one in missing:
        yield _summary(one, 0, 0, totals)
    yield "query.experimentseries.done", totals


def _summary(name: str, batches: int, points: int, totals: dict[str, int]) -> tuple[str, dict[str, Any]]:
    totals["series"] += 1
    totals["batches"] += batches
    totals["points"] += points
    return "query.experimentseries.series", {"seriesName": name, "batches": batches, "points": points}


def _data(query: _Query, one: Series, frame: Points) -> dict[str, Any]:
    return {
        "experimentId": query.experimentId,
        "seriesName": one.name,
        "metadata": one.metadata,
        "data": {"step": _steps(frame), "timestampMs": frame.timestamps_ms, "value": frame.values},
    }


def _steps(frame: Points) -> Any:
    """Return the steps; null where a point has none."""
    if (frame.steps != series.NO_STEP).all():
        return frame.steps
    return [None if step == series.NO_STEP else step for step in frame.steps.tolist()]
