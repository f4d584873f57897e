"""Experiments: opened by slug, found by id within an organisation, shown as records."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, case, func, insert, or_, select, update

from infra.server.refusals import Refused
from infra.server.store import sessions
from infra.server.store.database import AnyRow, new_id
from infra.server.store.schema import experiments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from infra.server.store.streams import Reads

__all__ = [
    "Opened",
    "changed",
    "create",
    "ensure",
    "find",
    "find_all",
    "hear",
    "listed",
    "move",
    "newest",
    "open_experiment",
    "record",
    "rename",
    "revisions",
    "told",
    "while_there",
]

T = TypeVar("T")


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
    row = _at_slug(
        connection,
        organisation_id=organisation_id,
        slug=slug,
        shown={"description": description, "meta": meta, "last_heartbeat_ms": now_ms},
        now_ms=now_ms,
    )
    session_id = sessions.begin(connection, row.id, now_ms=now_ms)
    return Opened(row.uid, sessions.issue(connection, session_id, now_ms=now_ms))


def create(
    connection: Connection,
    *,
    organisation_id: int,
    slug: str,
    description: str,
    meta: str,
    folder_id: int | None,
    now_ms: int,
) -> AnyRow:
    """Store an experiment that nobody writes to yet; one that has the slug already is continued.

    `folder_id` says where a new one goes, and one that is at the root; None is the root. Wherever else
    somebody put it, it stays.
    """
    row = _at_slug(
        connection,
        organisation_id=organisation_id,
        slug=slug,
        shown={"description": description, "meta": meta},
        now_ms=now_ms,
    )
    if row.folder_id is None and folder_id is not None:
        _set(connection, row.id, folder_id=folder_id)
    return _row(connection, row.id)


def ensure(
    connection: Connection,
    *,
    organisation_id: int,
    slug: str,
    meta: str,
    folder_id: int | None,
    now_ms: int,
) -> int:
    """Return what we call the experiment of a slug, made where there is none.

    One that is there keeps what it shows; it goes into the folder only if it was at the root.
    """
    found = connection.execute(
        select(experiments).where(*_of(organisation_id), experiments.c.slug == slug)
    ).first()
    if found is None:
        shown = {"description": "", "meta": meta, "updated_ms": now_ms, "folder_id": folder_id}
        return _create(connection, organisation_id, slug, shown, now_ms)
    if found.folder_id is None and folder_id is not None:
        _set(connection, found.id, folder_id=folder_id)
    changed(connection, found.id, now_ms=now_ms)
    return int(found.id)


def changed(connection: Connection, experiment_id: int, *, now_ms: int) -> None:
    """Note that what belongs to an experiment's record changed."""
    _set(connection, experiment_id, **_changed(now_ms))


def move(connection: Connection, experiment_id: int, folder_id: int | None) -> None:
    """Put an experiment into a folder, wherever it is; None is the root."""
    _set(connection, experiment_id, folder_id=folder_id)


def rename(connection: Connection, row: AnyRow, display_name: str | None, *, now_ms: int) -> None:
    """Set the name that people read; None shows the slug again, which never changes."""
    if row.display_name != display_name:
        _set(connection, row.id, display_name=display_name, **_changed(now_ms))


def hear(connection: Connection, uid: str, *, now_ms: int) -> None:
    """Note a sign of life."""
    connection.execute(update(experiments).where(experiments.c.uid == uid).values(last_heartbeat_ms=now_ms))


def told(connection: Connection, experiment_id: int, at_ms: int, *, now_ms: int) -> None:
    """Note that something happened at a time that is not after now, and that it was heard of now."""
    last, event_ms = experiments.c.last_event_ms, min(at_ms, now_ms)
    _set(
        connection,
        experiment_id,
        last_heartbeat_ms=now_ms,
        last_event_ms=case((or_(last.is_(None), last < event_ms), event_ms), else_=last),
    )


def find(connection: Connection, organisation_id: int, uid: str) -> AnyRow:
    """Return an experiment's row.

    Raises:
        Refused: There is none of this id in the organisation; another organisation's is not there.
    """
    rows = find_all(connection, organisation_id, [uid])
    if not rows:
        raise _not_there(uid)
    return rows[0]


def find_all(connection: Connection, organisation_id: int, uids: Iterable[str]) -> Sequence[AnyRow]:
    """Return the rows of those ids that are the organisation's experiments."""
    return connection.execute(
        select(experiments).where(*_of(organisation_id), experiments.c.uid.in_(list(uids)))
    ).all()


def while_there(reads: Reads, organisation_id: int, uid: str) -> Reads:
    """Return reads over views in which the experiment is still there, whatever is read of it.

    Once it is deleted its rows go away piece by piece: reading on raises `Refused`.
    """

    def read(work: Callable[[Connection], T]) -> T:
        def checked(connection: Connection) -> T:
            there = select(experiments.c.id).where(*_of(organisation_id), experiments.c.uid == uid)
            if connection.execute(there).first() is None:
                raise _not_there(uid)
            return work(connection)

        return reads(checked)

    return read


def newest(connection: Connection, organisation_id: int, *, limit: int) -> Sequence[AnyRow]:
    """Return the experiments of an organisation that changed last, the newest first."""
    return connection.execute(
        select(experiments)
        .where(*_of(organisation_id))
        .order_by(experiments.c.updated_ms.desc(), experiments.c.id.desc())
        .limit(limit)
    ).all()


def listed(
    connection: Connection,
    organisation_id: int,
    *,
    slug: str | None = None,
    search: str | None = None,
    status: str | None = None,
    folder_id: int | Literal[False] | None = False,
    limit: int,
    offset: int = 0,
) -> Sequence[AnyRow]:
    """Return the experiments that fit, the one that changed last first.

    `slug` is a whole one, `search` a part of one or of a display name in any case. `folder_id` False means
    anywhere, None the root.
    """
    wanted = _of(organisation_id)
    if slug is not None:
        wanted.append(experiments.c.slug == slug)
    plain = search is None or (search.isascii() and search.isprintable())
    if search and plain:
        names = (experiments.c.slug, experiments.c.display_name)
        wanted.append(or_(*(func.lower(name).contains(search.lower(), autoescape=True) for name in names)))
    if status is not None:
        wanted.append(experiments.c.status == status)
    if folder_id is not False:
        where = experiments.c.folder_id
        wanted.append(where.is_(None) if folder_id is None else where == folder_id)
    found = (
        select(experiments).where(*wanted).order_by(experiments.c.updated_ms.desc(), experiments.c.id.desc())
    )
    if search is None or plain:
        return connection.execute(found.limit(limit).offset(offset)).all()
    ids = _named(connection, found, search)[offset : offset + limit]
    return connection.execute(found.where(experiments.c.id.in_(ids))).all()


def record(row: AnyRow) -> dict[str, Any]:
    """Return an experiment as the wire shows it."""
    error = None
    if row.error_message is not None:
        error = {"message": row.error_message, "meta": json.loads(row.error_meta)}
    return {
        "experimentId": row.uid,
        "slug": row.slug,
        "displayName": row.display_name,
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


def _not_there(uid: str) -> Refused:
    return Refused("experiment_not_found", f"no experiment has the id {json.dumps(uid[:64])}")


def _of(organisation_id: int) -> list[ColumnElement[bool]]:
    """The conditions that make an experiment one that the organisation has."""
    return [experiments.c.organisation_id == organisation_id, experiments.c.deleted_ms.is_(None)]


def _named(connection: Connection, found: Select[*tuple[Any, ...]], part: str) -> list[int]:
    """Return which of the experiments that are found hold a text in a name, in any case.

    SQLite knows the cases of ASCII alone, and takes a NUL for the end of what is sought.
    """
    names = found.with_only_columns(experiments.c.id, experiments.c.slug, experiments.c.display_name)
    folded = part.casefold()
    return [
        row.id
        for row in connection.execute(names)
        if folded in row.slug.casefold() or folded in (row.display_name or "").casefold()
    ]


def _at_slug(
    connection: Connection, *, organisation_id: int, slug: str, shown: dict[str, Any], now_ms: int
) -> AnyRow:
    """Return the experiment of a slug, made where there is none; what is shown of it is the newest."""
    found = connection.execute(
        select(experiments.c.id).where(*_of(organisation_id), experiments.c.slug == slug)
    ).scalar()
    if found is None:
        found = _create(connection, organisation_id, slug, {**shown, "updated_ms": now_ms}, now_ms)
    else:
        _set(connection, found, **shown, **_changed(now_ms))
    return _row(connection, found)


def _row(connection: Connection, experiment_id: int) -> AnyRow:
    return connection.execute(select(experiments).where(experiments.c.id == experiment_id)).one()


def _set(connection: Connection, experiment_id: int, **values: Any) -> None:
    connection.execute(update(experiments).where(experiments.c.id == experiment_id).values(**values))


def _changed(now_ms: int) -> dict[str, Any]:
    """What goes with every change of the record."""
    return {"updated_ms": now_ms, "experiment_revision": experiments.c.experiment_revision + 1}


def _create(
    connection: Connection, organisation_id: int, slug: str, shown: dict[str, Any], now_ms: int
) -> int:
    created = connection.execute(
        insert(experiments).values(
            uid=str(uuid.uuid4()),
            organisation_id=organisation_id,
            slug=slug,
            status="created",
            created_ms=now_ms,
            experiment_revision=1,
            series_revision=0,
            **shown,
        )
    )
    return new_id(created)
