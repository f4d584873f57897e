"""Experiments: opened by slug, found by id within an organisation, shown as records."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select, update

from infra.server.refusals import Refused
from infra.server.store import sessions
from infra.server.store.database import AnyRow, new_id
from infra.server.store.schema import experiments

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Opened", "find", "find_all", "hear", "newest", "open_experiment", "record", "revisions"]


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening gives: the experiment's id and a token to write to it."""

    uid: str
    token: sessions.Token


def open_experiment(
    connection: Connection,
    *,
    organisation_id: int,
    slug: str,
    description: str,
    meta: str,
    now_ms: int,
) -> Opened:
    """Open the experiment of a slug, new or not; the newest open's description and meta are shown."""
    row = connection.execute(
        select(experiments.c.id, experiments.c.uid).where(
            experiments.c.organisation_id == organisation_id, experiments.c.slug == slug
        )
    ).first()
    shown = {"description": description, "meta": meta, "updated_ms": now_ms, "last_heartbeat_ms": now_ms}
    if row is None:
        experiment_id, uid = _create(connection, organisation_id, slug, shown, now_ms)
    else:
        experiment_id, uid = row.id, row.uid
        connection.execute(
            update(experiments)
            .where(experiments.c.id == experiment_id)
            .values(**shown, experiment_revision=experiments.c.experiment_revision + 1)
        )
    session_id = sessions.begin(connection, experiment_id, now_ms=now_ms)
    return Opened(uid, sessions.issue(connection, session_id, now_ms=now_ms))


def hear(connection: Connection, uid: str, *, now_ms: int) -> None:
    """Note a sign of life."""
    connection.execute(update(experiments).where(experiments.c.uid == uid).values(last_heartbeat_ms=now_ms))


def find(connection: Connection, organisation_id: int, uid: str) -> AnyRow:
    """Return an experiment's row.

    Raises:
        Refused: There is none of this id in the organisation; another organisation's is not there.
    """
    rows = find_all(connection, organisation_id, [uid])
    if not rows:
        raise Refused("experiment_not_found", f"no experiment has the id {json.dumps(uid[:64])}")
    return rows[0]


def find_all(connection: Connection, organisation_id: int, uids: Iterable[str]) -> Sequence[AnyRow]:
    """Return the rows of those ids that are the organisation's experiments."""
    return connection.execute(
        select(experiments).where(
            experiments.c.organisation_id == organisation_id, experiments.c.uid.in_(list(uids))
        )
    ).all()


def newest(connection: Connection, organisation_id: int, *, limit: int) -> Sequence[AnyRow]:
    """Return the experiments of an organisation that changed last, the newest first."""
    return connection.execute(
        select(experiments)
        .where(experiments.c.organisation_id == organisation_id)
        .order_by(experiments.c.updated_ms.desc(), experiments.c.id.desc())
        .limit(limit)
    ).all()


def record(row: AnyRow) -> dict[str, Any]:
    """Return an experiment as the wire shows it."""
    error = None
    if row.error_message is not None:
        error = {"message": row.error_message, "meta": json.loads(row.error_meta)}
    return {
        "experimentId": row.uid,
        "slug": row.slug,
        "description": row.description,
        "meta": json.loads(row.meta),
        "status": row.status,
        "error": error,
        "createdAtMs": row.created_ms,
        "updatedAtMs": row.updated_ms,
        "startedAtMs": row.started_ms,
        "doneAtMs": row.done_ms,
        "lastHeartbeatAtMs": row.last_heartbeat_ms,
        "lastEventAtMs": row.last_event_ms,
        **revisions(row),
    }


def revisions(row: AnyRow) -> dict[str, int]:
    """Return the two numbers that tell a cache what is stale."""
    return {"experimentRevision": row.experiment_revision, "seriesRevision": row.series_revision}


def _create(
    connection: Connection, organisation_id: int, slug: str, shown: dict[str, Any], now_ms: int
) -> tuple[int, str]:
    uid = str(uuid.uuid4())
    created = connection.execute(
        insert(experiments).values(
            uid=uid,
            organisation_id=organisation_id,
            slug=slug,
            status="created",
            created_ms=now_ms,
            experiment_revision=1,
            series_revision=0,
            **shown,
        )
    )
    return new_id(created), uid
