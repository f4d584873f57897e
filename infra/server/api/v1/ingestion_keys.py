"""Ingestion keys: made for one experiment, listed, revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.v1.model import IngestionKey, ingestion_key
from infra.server.api.v1.requests import answer, body_of, change, encoded, look
from infra.server.store import experiments
from infra.server.store import ingestion_keys as rows
from infra.server.store.ingestion_keys import MAX_LIFETIME_MS

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/experiments/{experiment_id}", route_class=GuardedRoute)
_CODES = ("experiment_not_found",)


class NewIngestionKey(msgspec.Struct):
    """A key to make; unset, it lives seven days."""

    name: Annotated[str, Meta(min_length=1, max_length=200)] = "SDK ingestion key"
    ttl_ms: Annotated[int, Meta(ge=1, le=MAX_LIFETIME_MS)] | None = None


class OneIngestionKey(msgspec.Struct):
    """One ingestion key."""

    key: IngestionKey


class IngestionKeys(msgspec.Struct):
    """Some ingestion keys."""

    keys: list[IngestionKey]


class MadeIngestionKey(msgspec.Struct):
    """The one reply that holds the token."""

    key: IngestionKey
    token: str


@router.get("/ingestion-keys")
@needs("read")
@describe(Operation(data=IngestionKeys, codes=_CODES))
async def list_ingestion_keys(request: Request, experiment_id: str) -> Response:
    """List the keys of an experiment, also those that are no longer good, the newest first."""

    def read(connection: Connection) -> IngestionKeys:
        found = rows.of_experiment(connection, _experiment(request, connection, experiment_id))
        return IngestionKeys([ingestion_key(row, experiment_id) for row in found])

    return await look(request, read)


@router.post("/ingestion-keys")
@needs("write")
@describe(
    Operation(
        data=MadeIngestionKey,
        body=NewIngestionKey,
        codes=_CODES,
        examples={"an hour's": {"name": "nightly", "ttl_ms": 3_600_000}},
    )
)
async def create_ingestion_key(request: Request, experiment_id: str) -> Response:
    """Make a key that writes to one experiment, for seven days unless `ttl_ms` says less.

    Its token is in this reply and nowhere else, so an `idempotency-key` is passed over here.
    """
    new, store = await body_of(request, NewIngestionKey), store_of(request)

    def make(connection: Connection) -> MadeIngestionKey:
        key, secret = rows.create(
            connection,
            _experiment(request, connection, experiment_id),
            new.name,
            lifetime_ms=new.ttl_ms or MAX_LIFETIME_MS,
            now_ms=store.clock_ms(),
        )
        return MadeIngestionKey(ingestion_key(key, experiment_id), secret)

    return answer(encoded(await store.write(make)))


@router.delete("/ingestion-keys/{key_id}")
@needs("write")
@describe(Operation(repeatable=True, data=OneIngestionKey, codes=(*_CODES, "ingestion_key_not_found")))
async def revoke_ingestion_key(request: Request, experiment_id: str, key_id: str) -> Response:
    """Revoke a key: from this reply on nothing is written with it."""
    store = store_of(request)

    def revoke(connection: Connection) -> OneIngestionKey:
        experiment = _experiment(request, connection, experiment_id)
        row = rows.revoke(connection, experiment, key_id, now_ms=store.clock_ms())
        return OneIngestionKey(ingestion_key(row, experiment_id))

    return await change(request, revoke)


def _experiment(request: Request, connection: Connection, experiment_id: str) -> int:
    organisation = principal_of(request).organisation
    return int(experiments.find(connection, organisation.id, experiment_id).id)
