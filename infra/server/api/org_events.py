"""POST /api/v2/events: what is asked with an organisation's key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import orjson
from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection
from starlette.responses import StreamingResponse

from infra.server.api import event_schemas
from infra.server.api.body import LARGE_BYTES, OFFER_GZIP, aside
from infra.server.api.context import GuardedRoute, Principal, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.envelopes import Answer, Envelope, Reply, convert, decode_batch, encode_replies
from infra.server.api.prometheus import measures_of
from infra.server.limits import check, check_folder_name, compact_object
from infra.server.refusals import Refused
from infra.server.store import annotations as annotation_rows
from infra.server.store import experiments, folders, series, sessions
from runtime.events import limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from infra.server.store.sessions import Token
    from infra.server.store.store import Store

__all__ = ["router"]

router = APIRouter(route_class=GuardedRoute)
S = TypeVar("S", bound=msgspec.Struct)
_PREFIX = "syvain.v2."
_MAX_IDS = 500
_MAX_ANSWERS_BYTES = 64 * 2**20
"""Together; 500 records of the largest metadata fit. The last answer that begins within it comes whole."""


class _Open(msgspec.Struct):
    slug: str
    description: str = ""
    meta: dict[str, Any] = {}


class _Refresh(msgspec.Struct):
    experimentId: str  # noqa: N815 - the wire's names, here and below
    experimentToken: str  # noqa: N815


class _Experiment(msgspec.Struct):
    experimentId: str  # noqa: N815


class _Experiments(msgspec.Struct):
    experimentIds: list[str]  # noqa: N815


class _Create(msgspec.Struct):
    name: str
    parentFolderId: str | None = None  # noqa: N815


class _Rename(msgspec.Struct):
    folderId: str  # noqa: N815
    name: str


class _Move(msgspec.Struct):
    folderId: str  # noqa: N815
    toFolderId: str | None  # noqa: N815
    fromFolderId: str | None = None  # noqa: N815


class _Place(msgspec.Struct):
    experimentId: str  # noqa: N815
    toFolderId: str | None  # noqa: N815
    fromFolderId: str | None = None  # noqa: N815


_Envelope = Envelope[dict[str, Any]]
_decoder = msgspec.json.Decoder(list[_Envelope])


class _Asked(msgspec.Struct):
    """One event with what it is answered from."""

    data: dict[str, Any]
    organisation_id: int
    now_ms: int

    def fields(self, kind: type[S]) -> S:
        """Return the event's data as `kind`, or refuse it."""
        try:
            return msgspec.convert(self.data, kind)
        except msgspec.ValidationError as error:
            raise Refused("invalid_event", str(error)) from error


_Handler = Callable[[Connection, _Asked], Answer]


@router.post("/api/v2/events")
@needs("read")
@describe(
    Operation(
        reply=event_schemas.replies(event_schemas.ORG_EVENTS),
        body=event_schemas.batch(event_schemas.ORG_EVENTS),
        codes=("batch_too_large",),
        examples=event_schemas.batch_examples(event_schemas.ORG_EVENTS),
    )
)
async def org_events(request: Request) -> Response:
    """Answer a batch in order. Message ids are for correlation only: clients reuse them."""
    principal, room = principal_of(request), _Room()
    events = await aside(request, lambda body: decode_batch(body, _decoder))
    correlations, replies = [], []
    for event in events:
        message_id = str(event["messageId"]) if isinstance(event, dict) else event.messageId
        correlations.append(message_id)
        replies.append(await _answer(store_of(request), event, principal, room))
    measures_of(request).events(len(replies), (reply for reply in replies if isinstance(reply, Refused)))
    body = encode_replies(correlations, replies)
    if len(body) <= LARGE_BYTES:
        return Response(body, headers=OFFER_GZIP, media_type="application/json")
    return StreamingResponse(_pieces(body), headers=OFFER_GZIP, media_type="application/json")


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """Yield what is compressed and sent while others get their turn in between."""
    for first in range(0, len(body), LARGE_BYTES):
        yield body[first : first + LARGE_BYTES]


class _Room:
    """What the answers to one batch may still take."""

    def __init__(self) -> None:
        self._left_bytes = _MAX_ANSWERS_BYTES

    def check(self) -> None:
        """Refuse a question once the answers before it took everything."""
        if self._left_bytes <= 0:
            raise Refused(
                "limit_exceeded",
                f"answers take at most {_MAX_ANSWERS_BYTES:,} bytes a request: ask for fewer at once",
            )

    def take(self, name: str, data: Any) -> Reply:
        """Return an answer, encoded where it was read: some are large."""
        text = orjson.dumps(data)
        self._left_bytes -= len(text)
        return name, orjson.Fragment(text)


async def _answer(
    store: Store, event: _Envelope | dict[str, Any], principal: Principal, room: _Room
) -> Reply:
    try:
        if isinstance(event, dict):
            event = _converted(event)
        asked = _Asked(event.data, principal.organisation.id, store.clock_ms())
        if (query := _QUERIES.get(event.event)) is not None:
            room.check()
            return await store.read(lambda connection: room.take(*query(connection, asked)))
        if (change := _CHANGES.get(event.event)) is not None:
            principal.demand("write")
            return await store.write(lambda connection: change(connection, asked))
        return Refused("event_not_known", f"no event of this address is named {event.event[:80]!r}")
    except Refused as refusal:
        if refusal.status == 503:
            raise  # nothing of the request can be answered: say so to every kind of client
        return refusal


def _converted(event: dict[str, Any]) -> _Envelope:
    try:
        return convert(event, _Envelope)
    except msgspec.ValidationError as error:
        raise Refused("invalid_event", str(error)) from error


def _open(connection: Connection, asked: _Asked) -> Answer:
    data = asked.fields(_Open)
    opened = experiments.open_experiment(
        connection,
        organisation_id=asked.organisation_id,
        slug=check(limits.check_slug, data.slug),
        description=check(limits.check_description, data.description),
        meta=compact_object(data.meta, field="meta"),
        now_ms=asked.now_ms,
    )
    return "experiment.opened", {**_token(opened.uid, opened.token), "acceptsTimestampMs": True}


def _refresh(connection: Connection, asked: _Asked) -> Answer:
    data = asked.fields(_Refresh)
    token = sessions.refresh(
        connection,
        data.experimentToken,
        data.experimentId,
        organisation_id=asked.organisation_id,
        now_ms=asked.now_ms,
    )
    experiments.hear(connection, data.experimentId, now_ms=asked.now_ms)
    return "experiment.tokenRefreshed", _token(data.experimentId, token)


def _token(experiment_id: str, token: Token) -> dict[str, Any]:
    return {
        "experimentId": experiment_id,
        "experimentToken": token.secret,
        "expiresAtMs": token.expires_ms,
    }


def _create_folder(connection: Connection, asked: _Asked) -> Answer:
    data = asked.fields(_Create)
    name = check(check_folder_name, data.name)
    uid = folders.create(connection, asked.organisation_id, name, data.parentFolderId, now_ms=asked.now_ms)
    return "folder.created", {"folderId": uid}


def _rename_folder(connection: Connection, asked: _Asked) -> Answer:
    data = asked.fields(_Rename)
    folders.rename(connection, asked.organisation_id, data.folderId, check(check_folder_name, data.name))
    return "folder.renamed", {"folderId": data.folderId}


def _move_folder(connection: Connection, asked: _Asked) -> Answer:
    data = asked.fields(_Move)
    folders.move(
        connection, asked.organisation_id, data.folderId, from_uid=data.fromFolderId, to_uid=data.toFolderId
    )
    return "folder.moved", {"folderId": data.folderId}


def _place(connection: Connection, asked: _Asked) -> Answer:
    data = asked.fields(_Place)
    folders.place(
        connection,
        asked.organisation_id,
        data.experimentId,
        from_uid=data.fromFolderId,
        to_uid=data.toFolderId,
    )
    return "folderexperiment.moved", {"experimentId": data.experimentId, "folderId": data.toFolderId}


def _tree(connection: Connection, asked: _Asked) -> Answer:
    return "foldertree.read", folders.tree(connection, asked.organisation_id)


def _experiment(connection: Connection, asked: _Asked) -> Answer:
    row = experiments.find(connection, asked.organisation_id, asked.fields(_Experiment).experimentId)
    return "query.experiment.result", {"experiment": experiments.record(row)}


def _experiments(connection: Connection, asked: _Asked) -> Answer:
    rows, missing = _found(connection, asked)
    records = [experiments.record(row) for row in rows]
    return "query.experiments.result", {"experiments": records, "missingExperimentIds": missing}


def _revisions(connection: Connection, asked: _Asked) -> Answer:
    rows, missing = _found(connection, asked)
    found = [{"experimentId": row.uid, **experiments.revisions(row)} for row in rows]
    return "query.revisions.result", {"revisions": found, "missingExperimentIds": missing}


def _found(connection: Connection, asked: _Asked) -> tuple[list[Any], list[str]]:
    """Return the rows and the ids that are not there, each in the order asked, each once."""
    ids = list(dict.fromkeys(asked.fields(_Experiments).experimentIds))
    if len(ids) > _MAX_IDS:
        raise Refused("limit_exceeded", f"experimentIds takes at most {_MAX_IDS} ids, got {len(ids)}")
    rows = {row.uid: row for row in experiments.find_all(connection, asked.organisation_id, ids)}
    return [rows[uid] for uid in ids if uid in rows], [uid for uid in ids if uid not in rows]


def _catalog(connection: Connection, asked: _Asked) -> Answer:
    row = experiments.find(connection, asked.organisation_id, asked.fields(_Experiment).experimentId)
    return "query.catalog.result", {"experimentId": row.uid, "series": series.catalog(connection, row.id)}


def _annotations(connection: Connection, asked: _Asked) -> Answer:
    row = experiments.find(connection, asked.organisation_id, asked.fields(_Experiment).experimentId)
    found = annotation_rows.encoded(connection, row.id, max_bytes=_MAX_ANSWERS_BYTES)
    if found is None:
        raise Refused(
            "limit_exceeded",
            f"the annotations are more than the {_MAX_ANSWERS_BYTES:,} bytes that an answer takes: ask"
            " /api/v1/experiments/<id>/annotations for some of them, by `to` and `limit`",
        )
    return "query.annotations.result", {"annotations": orjson.Fragment(found)}


_QUERIES: dict[str, _Handler] = {
    _PREFIX + "foldertree.read": _tree,
    _PREFIX + "query.experiment": _experiment,
    _PREFIX + "query.experiments": _experiments,
    _PREFIX + "query.revisions": _revisions,
    _PREFIX + "query.catalog": _catalog,
    _PREFIX + "query.annotations": _annotations,
}
_CHANGES: dict[str, _Handler] = {
    _PREFIX + "experiment.open": _open,
    _PREFIX + "experiment.tokenRefresh": _refresh,
    _PREFIX + "folder.create": _create_folder,
    _PREFIX + "folder.rename": _rename_folder,
    _PREFIX + "folder.move": _move_folder,
    _PREFIX + "folderexperiment.move": _place,
}
