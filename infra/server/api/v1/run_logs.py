"""A run's logs: appended by its worker, an attempt at a time, read as text, waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.news import news_of
from infra.server.api.v1.requests import answer, body_of, encoded, look, query_of
from infra.server.api.v1.run_shown import run_of
from infra.server.api.v1.run_telemetry import Seq, WaitS, packed_or_not
from infra.server.api.v1.runs import CODES, Attempt
from infra.server.refusals import Refused
from infra.server.store import experiments, run_logs, runs
from infra.server.store.run_logs import Log

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["router"]


class LogRoute(GuardedRoute):
    """A route whose body is a part of a log."""

    max_body_bytes = 8 * 2**20


router = APIRouter(prefix="/api/v1/runs/{run_id}/log", route_class=LogRoute)


class NewText(msgspec.Struct):
    """Text that comes after the first `offset` bytes of an attempt's log."""

    attempt: Attempt
    offset: Seq
    text: Annotated[str, Meta(max_length=run_logs.MAX_TEXT_BYTES)]


class Offset(msgspec.Struct):
    """How many bytes of the attempt's log were sent by now."""

    offset: int


class LogOf(msgspec.Struct):
    """Whose log is meant."""

    attempt: Attempt


class LogAfter(msgspec.Struct):
    """Which log is wanted, what was read of it already, and how long to wait for more.

    Without an attempt it is the newest one's that has a log.
    """

    attempt: Attempt | None = None
    after: Seq = 0
    wait_s: WaitS = 0


class _Found(NamedTuple):
    run_id: int
    experiment_uid: str
    log: Log
    next_attempt: int | None
    final: bool


@router.post("")
@needs("write")
@describe(
    Operation(
        data=Offset,
        body=NewText,
        codes=(*CODES, "offset_moved", "limit_exceeded"),
        examples={"a line": {"attempt": 1, "offset": 0, "text": "epoch 1\n"}},
    )
)
async def append_log(request: Request, run_id: str) -> Response:
    """Append text to an attempt's log.

    Unless `offset` is where it ends, the answer is 409 `offset_moved`; its `error.stored` says where that is.
    """
    new = await body_of(request, NewText)
    text = new.text.encode()
    if len(text) > run_logs.MAX_TEXT_BYTES:
        raise Refused(
            "limit_exceeded",
            f"text takes at most {run_logs.MAX_TEXT_BYTES:,} bytes at once, got {len(text):,}",
        )
    store, told = store_of(request), list[int]()

    def work(connection: Connection) -> Offset:
        row = run_of(request, connection, run_id)
        told.append(row.id)
        log = run_logs.append(connection, row.id, attempt=new.attempt, offset=new.offset, text=text)
        return Offset(log.sent)

    stored = await store.write(work)
    news_of(request).tell(told[0])
    return answer(encoded(stored))


@router.get("/cursor")
@needs("read")
@describe(Operation(data=Offset, query=LogOf, codes=CODES))
async def show_log_cursor(request: Request, run_id: str) -> Response:
    """Show how many bytes of an attempt's log were sent: where to go on."""
    wanted = query_of(request, LogOf)

    def read(connection: Connection) -> Offset:
        log = run_logs.find(connection, run_of(request, connection, run_id).id, wanted.attempt)
        return Offset(0 if log is None else log.sent)

    return await look(request, read)


@router.get("")
@needs("read", keyless=True)
@describe(Operation(reply={"type": "string"}, media="text/plain; charset=utf-8", query=LogAfter, codes=CODES))
async def read_log(request: Request, run_id: str) -> Response:
    """Stream an attempt's log from a byte on.

    With `wait_s` the answer comes once there is more, or a later attempt has a log, or the run ended, or the
    time is over. Headers: `x-attempt` says whose log it is, `x-log-size` where it ends, `x-next-attempt`
    whose comes next (empty: nobody's yet), `x-run-final` whether the run is over.
    """
    wanted = query_of(request, LogAfter)
    store, organisation = store_of(request), principal_of(request).organisation

    async def find() -> _Found:
        return await store.read(lambda connection: _find(request, connection, run_id, wanted.attempt))

    def is_news(found: _Found) -> bool:
        return found.log.kept > wanted.after or found.next_attempt is not None or found.final

    found = await find()
    if wanted.wait_s > 0 and not is_news(found):
        found = await news_of(request).wait(
            found.run_id, find, until=is_news, wait_s=wanted.wait_s, is_gone=request.is_disconnected
        )
    reads = experiments.while_there(store.read_now, organisation.id, found.experiment_uid)
    parts = run_logs.parts(reads, found.log, after=wanted.after)
    response = packed_or_not(request, parts, media_type="text/plain; charset=utf-8")
    response.headers["x-attempt"] = str(found.log.attempt)
    response.headers["x-log-size"] = str(found.log.kept)
    response.headers["x-next-attempt"] = "" if found.next_attempt is None else str(found.next_attempt)
    response.headers["x-run-final"] = str(found.final).lower()
    return response


def _find(request: Request, connection: Connection, run_id: str, attempt: int | None) -> _Found:
    row = run_of(request, connection, run_id)
    if attempt is None:
        log = run_logs.newest(connection, row.id) or Log(0, row.attempt)
    else:
        log = run_logs.find(connection, row.id, attempt) or Log(0, attempt)
    later = run_logs.next_after(connection, row.id, log.attempt)
    next_attempt = None if later is None else later.attempt
    return _Found(row.id, row.experiment_uid, log, next_attempt, row.state in runs.FINAL)
