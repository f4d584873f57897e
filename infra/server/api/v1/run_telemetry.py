"""A run's telemetry: appended by whoever follows its file, read as lines, waited for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from infra.server.api.body import read_body
from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.envelopes import decode_loosely
from infra.server.api.news import MAX_WAIT_S, news_of
from infra.server.api.streaming import Streamed
from infra.server.api.v1.requests import answer, encoded, look, query_of
from infra.server.api.v1.run_shown import AttemptMark, run_of
from infra.server.api.v1.runs import CODES, Attempt
from infra.server.refusals import Refused
from infra.server.store import deflated, experiments, runs, telemetry
from infra.server.store.telemetry import Batch, batch_of
from runtime.events import limits
from runtime.telemetry import rules

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sqlalchemy import Connection

    from infra.server.store.database import AnyRow
    from infra.server.store.deflated import Part

__all__ = ["MAX_BATCH_POINTS", "MAX_CURSOR_BYTES", "Seq", "WaitS", "packed_or_not", "router"]


class TelemetryRoute(GuardedRoute):
    """A route whose body is a batch of points."""

    max_body_bytes = 8 * 2**20


router = APIRouter(prefix="/api/v1/runs/{run_id}/telemetry", route_class=TelemetryRoute)
LINES = "application/x-ndjson"
MAX_BATCH_POINTS = 10_000
MAX_CURSOR_BYTES = 16_384
Seq = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Reason = Annotated[str, Meta(pattern="^[a-z][a-z_]{0,63}$")]
_MAX_REASONS = 64
_LARGE_BYTES = 32_768
"""A body that is larger is read in a thread: some hundred points take milliseconds to check and to pack."""
WaitS = Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="How long to wait for something to answer.")]


class NewPoints(msgspec.Struct):
    """Points that come after the one of seq `after_seq`, and how the one who sends them stands then.

    `dropped` are the counts of the whole run by reason. What `cursor` says is its sender's own business.
    """

    attempt: Attempt
    after_seq: Seq
    points: Annotated[list[dict[str, int | float]], Meta(max_length=MAX_BATCH_POINTS)]
    dropped: dict[Reason, Seq] = {}
    cursor: dict[str, Any] | None = None


class Stored(msgspec.Struct):
    """How far the run is now."""

    last_seq: int


class Cursor(msgspec.Struct):
    """What whoever sends a run's telemetry goes on from."""

    last_seq: int
    attempt: int
    cursor: dict[str, Any] | None
    keys: list[str]
    points: int
    dropped: dict[str, int]


class Key(msgspec.Struct):
    """A key with how many points carry it, and its last, lowest and highest value."""

    key: str
    count: int
    last: int | float
    min: int | float
    max: int | float


class Summary(msgspec.Struct):
    """What a run's telemetry comes to; the keys are in order of arrival.

    `final` says that the run is over. `attempts` are where each attempt begins.
    """

    keys: list[Key]
    points: int
    last_seq: int
    dropped: dict[str, int]
    attempts: list[AttemptMark]
    final: bool


class After(msgspec.Struct):
    """What was seen already, and how long to wait for more."""

    after: Seq = 0
    wait_s: WaitS = 0


class PointsAfter(After):
    """Which points are wanted."""

    limit: Annotated[int, Meta(ge=1, le=rules.MAX_RUN_POINTS)] = rules.MAX_RUN_POINTS


@router.get("/cursor")
@needs("write")  # it tells beginnings of the file apart, which is not masked: nothing to try guesses against
@describe(Operation(data=Cursor, codes=CODES))
async def show_cursor(request: Request, run_id: str) -> Response:
    """Show what whoever sends a run's telemetry goes on from."""

    def read(connection: Connection) -> Cursor:
        return Cursor(**telemetry.cursor_of(connection, run_of(request, connection, run_id)))

    return await look(request, read)


@router.post("")
@needs("write")
@describe(
    Operation(
        data=Stored,
        body=NewPoints,
        codes=(*CODES, "seq_moved", "superseded", "limit_exceeded"),
        examples={
            "two points": {
                "attempt": 1,
                "after_seq": 0,
                "points": [{"step": 1, "loss": 2.31}, {"step": 2, "loss": 2.18}],
                "dropped": {},
                "cursor": {"offset": 56},
            }
        },
    )
)
async def append_points(request: Request, run_id: str) -> Response:
    """Append points to a run's telemetry. All of a request is stored, or nothing.

    Unless `after_seq` is the run's last, the answer is 409 `seq_moved`, whose `error.stored` is the cursor to
    go on from: what was sent once already is not stored again.
    """
    body = await read_body(request)
    large = len(body) > _LARGE_BYTES
    attempt, batch = await to_thread.run_sync(_batch, body) if large else _batch(body)
    store = store_of(request)
    told: list[int] = []

    def work(connection: Connection) -> Stored:
        row = run_of(request, connection, run_id)
        runs.fence(connection, row, attempt, now_ms=store.clock_ms())
        told.append(row.id)
        return Stored(telemetry.append(connection, row, batch))

    stored = await store.write(work)
    news_of(request).tell(told[0])
    return answer(encoded(stored))


@router.get("/summary")
@needs("read")
@describe(Operation(data=Summary, query=After, codes=CODES))
async def show_summary(request: Request, run_id: str) -> Response:
    """Show every key that a run has written.

    With `wait_s` the answer comes once there is a point after `after`, or the run ended, or the time is over.
    """
    row = await _awaited(request, run_id, query_of(request, After))
    keys = [Key(*one) for one in json.loads(row.summary)]
    marks = [AttemptMark(*mark) for mark in json.loads(row.attempts)]
    standing = telemetry.standing(row) | {"keys": keys}
    return answer(encoded(Summary(**standing, attempts=marks, final=row.state in runs.FINAL)))


@router.get("/points")
@needs("read")
@describe(
    Operation(
        reply={"type": "string", "description": 'Lines of `{"seq": 1, "data": {...}}`.'},
        media=LINES,
        query=PointsAfter,
        codes=CODES,
    )
)
async def read_points(request: Request, run_id: str) -> Response:
    """Stream the points after one as lines.

    With `wait_s` the answer comes once there is one, or the run ended, or the time is over. The header
    `x-last-seq` is the seq of the run's last point, `x-run-final` says whether the run is over.
    """
    wanted = query_of(request, PointsAfter)
    row = await _awaited(request, run_id, wanted)
    last = min(row.last_seq, wanted.after + wanted.limit)
    store, organisation = store_of(request), principal_of(request).organisation
    reads = experiments.while_there(store.read_now, organisation.id, row.experiment_uid)
    parts = telemetry.parts(reads, row.id, after=wanted.after, last=last)
    response = packed_or_not(request, parts, media_type=LINES)
    response.headers["x-last-seq"] = str(row.last_seq)
    response.headers["x-run-final"] = str(row.state in runs.FINAL).lower()
    return response


def packed_or_not(request: Request, parts: Iterator[Part], *, media_type: str) -> Response:
    """Return an answer of parts: to whoever takes gzip, as they are stored."""
    packed = "gzip" in request.headers.get("accept-encoding", "")
    response = Streamed(request, _bytes(parts, packed=packed), media_type=media_type)
    response.headers["vary"] = "accept-encoding"
    if packed:
        response.headers["content-encoding"] = "gzip"
    return response


def _bytes(parts: Iterator[Part], *, packed: bool) -> Generator[bytes]:
    if packed:
        yield from deflated.gzipped(parts)
    else:
        yield from (deflated.unpack(part.data) for part in parts)


async def _awaited(request: Request, run_id: str, wanted: After) -> AnyRow:
    """Return a run's row once it has a point after one, or is over, or the wait is."""
    store = store_of(request)

    async def find() -> AnyRow:
        return await store.read(lambda connection: run_of(request, connection, run_id))

    row = await find()
    if wanted.wait_s == 0 or _is_news(row, wanted.after):
        return row
    return await news_of(request).wait(
        row.id,
        find,
        until=lambda row: _is_news(row, wanted.after),
        wait_s=wanted.wait_s,
        is_gone=request.is_disconnected,
    )


def _is_news(row: AnyRow, after: int) -> bool:
    return bool(row.last_seq > after or row.state in runs.FINAL)


def _batch(body: bytes) -> tuple[int, Batch]:
    """Return which attempt sends what.

    Raises:
        Refused: The body does not fit, or the rules of telemetry would not have kept a point as it is.
    """
    try:
        new = msgspec.convert(decode_loosely(body), NewPoints)
    except (ValueError, RecursionError) as error:  # msgspec's ValidationError is a ValueError
        raise Refused("invalid_request", str(error)) from error
    if len(new.dropped) > _MAX_REASONS:
        raise Refused(
            "limit_exceeded", f"dropped takes at most {_MAX_REASONS} reasons, got {len(new.dropped)}"
        )
    cursor = None if new.cursor is None else _cursor(new.cursor)
    points = _kept(new.points)
    return new.attempt, batch_of(points, after_seq=new.after_seq, dropped=new.dropped, cursor=cursor)


def _kept(points: list[dict[str, int | float]]) -> list[dict[str, int | float]]:
    """Return the points as the rules keep them; whoever sent them has held the same rules, or is told."""
    held = rules.Rules()
    found = []
    for place, point in enumerate(points):
        kept = held.keep(point)
        if kept is None or len(kept) != len(point):
            why = next((reason.one for reason in held.dropped), "a number that is not finite is no number")
            raise Refused("limit_exceeded", f"points[{place}] is not one: {why}", details={"index": place})
        found.append(kept)
    return found


def _cursor(cursor: dict[str, Any]) -> str:
    try:
        text = limits.compact(cursor)
    except ValueError as error:
        raise Refused("invalid_request", f"cursor: {error}") from error
    if len(text) > MAX_CURSOR_BYTES:
        raise Refused(
            "limit_exceeded", f"cursor takes at most {MAX_CURSOR_BYTES:,} bytes of JSON, got {len(text):,}"
        )
    return text.decode()
