"""Queries: what metrics experiments have, and the points of some of them, whole or as a stream of lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import orjson
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.streaming import Streamed
from infra.server.api.v1.requests import body_of, look
from infra.server.limits import partition
from infra.server.store import experiments, series, sessions
from infra.server.store.points import NO_STEP

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sqlalchemy import Connection

    from infra.server.store.series import Points, Series
    from infra.server.store.store import Store

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/query", route_class=GuardedRoute)
LINES = "application/vnd.syvain.metric-series+ndjson"
Id = Annotated[str, Meta(min_length=1)]
_CODES = ("experiment_not_found",)


class CatalogQuery(msgspec.Struct):
    """Which experiments are asked about."""

    experimentIds: Annotated[list[Id], Meta(min_length=1, max_length=64)]  # noqa: N815 - the wire's names, here and below


class CatalogMetric(msgspec.Struct):
    """A metric's name with the metadata keys that its points have, and the values of each."""

    experimentId: str  # noqa: N815
    metricName: str  # noqa: N815
    metadataKeys: list[str]  # noqa: N815
    metadata: dict[str, list[str]]


class Predicate(msgspec.Struct):
    """A key that metadata must have; with a value, exactly that one."""

    key: str
    value: str | None = None


class Selection(msgspec.Struct):
    """Some series of an experiment; without a name, of every metric."""

    experimentId: Id  # noqa: N815
    metricName: str | None = None  # noqa: N815
    metadataFilter: Annotated[list[Predicate], Meta(max_length=32)] | None = None  # noqa: N815

    def takes(self, metadata: dict[str, str]) -> bool:
        """Whether a metadata map has every key and, where one is asked for, the value."""
        return all(
            one.key in metadata and one.value in {None, metadata[one.key]}
            for one in self.metadataFilter or ()
        )


class SeriesOrder(msgspec.Struct):
    """How points come."""

    axis: Literal["step", "timestamp"]
    direction: Literal["asc", "desc"]


class SeriesQuery(msgspec.Struct):
    """What is wanted of which series."""

    series: Annotated[list[Selection], Meta(min_length=1, max_length=64)]
    order: SeriesOrder
    stream: bool = False
    copies: Literal["all", "newest"] = "all"


class Columns(msgspec.Struct):
    """Points as columns of equal length."""

    steps: list[int | None]
    timestamp: list[int]
    value: list[float]


class SeriesBatch(msgspec.Struct):
    """Points of one exact metadata map in the order that was asked for; a long series takes several."""

    experimentId: str  # noqa: N815
    metricName: str  # noqa: N815
    metadataHash: str  # noqa: N815
    metadata: dict[str, str]
    data: Columns


@router.post("/metric-catalog")
@needs("read")
@describe(
    Operation(
        data=list[CatalogMetric],
        body=CatalogQuery,
        codes=_CODES,
        examples={"one": {"experimentIds": ["00000000-0000-4000-8000-000000000000"]}},
    )
)
async def metric_catalog(request: Request) -> Response:
    """Say which metrics up to 64 experiments have, with the metadata that filters can name."""
    query = await body_of(request, CatalogQuery)
    organisation = principal_of(request).organisation

    def read(connection: Connection) -> list[CatalogMetric]:
        return [
            CatalogMetric(uid, one["seriesName"], [key["key"] for key in one["metadata"]], _values(one))
            for uid in dict.fromkeys(query.experimentIds)
            for one in series.catalog(connection, experiments.find(connection, organisation.id, uid).id)
        ]

    return await look(request, read)


@router.post("/series")
@needs("read")
@describe(
    Operation(
        data=list[SeriesBatch],
        other_media=(LINES,),
        body=SeriesQuery,
        codes=_CODES,
        examples={
            "one metric": {
                "series": [
                    {
                        "experimentId": "00000000-0000-4000-8000-000000000000",
                        "metricName": "loss",
                        "metadataFilter": [{"key": "split", "value": "train"}],
                    }
                ],
                "order": {"axis": "step", "direction": "asc"},
            }
        },
    )
)
async def query_series(request: Request) -> Response:
    """Return the points of up to 64 selections, each series once.

    With `stream` the reply is lines of batches, and a last line that counts them: without it, the reply was
    cut off. `copies` is ours: `newest` leaves out what a resume repeated.
    """
    query = await body_of(request, SeriesQuery)
    store, organisation_id = store_of(request), principal_of(request).organisation.id
    found = await store.read(lambda connection: _selected(connection, organisation_id, query))
    batches = _batches(store, organisation_id, found, query)
    lines = _as_lines(batches) if query.stream else _as_array(batches)
    return Streamed(request, lines, media_type=LINES if query.stream else "application/json")


@dataclass(frozen=True, slots=True)
class _Found:
    """An experiment with those of its series that were selected."""

    uid: str
    series: list[Series]
    ranks: dict[int, int] | None


def _selected(connection: Connection, organisation_id: int, query: SeriesQuery) -> list[_Found]:
    """Return what the selections take; what several take comes once."""
    rows: dict[str, Any] = {}
    taken: dict[str, dict[int, Series]] = {}
    for one in query.series:
        if one.experimentId not in rows:
            rows[one.experimentId] = experiments.find(connection, organisation_id, one.experimentId)
        names = None if one.metricName is None else [one.metricName]
        found = series.of_experiment(connection, rows[one.experimentId].id, names)
        taken.setdefault(one.experimentId, {}).update(
            (each.id, each) for each in found if one.takes(each.metadata)
        )
    newest = query.copies == "newest"
    return [
        _Found(uid, list(found.values()), sessions.ranks(connection, rows[uid].id) if newest else None)
        for uid, found in taken.items()
    ]


def _batches(
    store: Store, organisation_id: int, found: list[_Found], query: SeriesQuery
) -> Iterator[tuple[int, bytes]]:
    """Yield each batch with how many points it has."""
    for experiment in found:
        order = series.Order(
            query.order.axis, descending=query.order.direction == "desc", newest=experiment.ranks
        )
        reads = experiments.while_there(store.read_now, organisation_id, experiment.uid)
        for one, points in series.stream_each(reads, experiment.series, order):
            yield len(points), _encoded(experiment.uid, one, points)


def _encoded(experiment_uid: str, one: Series, points: Points) -> bytes:
    steps: Any = points.steps
    if (steps == NO_STEP).any():
        steps = [None if step == NO_STEP else step for step in steps.tolist()]
    return orjson.dumps(
        {
            "experimentId": experiment_uid,
            "metricName": one.name,
            "metadataHash": partition(one.name, tuple(one.metadata.items())).hash.hex(),
            "metadata": one.metadata,
            "data": {"steps": steps, "timestamp": points.timestamps_ms, "value": points.values},
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _as_lines(batches: Iterator[tuple[int, bytes]]) -> Generator[bytes]:
    num_batches = num_rows = 0
    for count, batch in batches:
        num_batches += 1
        num_rows += count
        yield batch + b"\n"
    yield b'{"kind":"complete","batchCount":%d,"rowCount":%d}\n' % (num_batches, num_rows)


def _as_array(batches: Iterator[tuple[int, bytes]]) -> Generator[bytes]:
    yield b'{"data":['
    for place, (_, batch) in enumerate(batches):
        yield b"," + batch if place else batch
    yield b'],"error":null}'


def _values(one: dict[str, Any]) -> dict[str, list[str]]:
    return {key["key"]: key["values"] for key in one["metadata"]}
