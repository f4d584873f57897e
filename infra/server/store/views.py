"""Saved views: setups of the app that everybody in the organisation can open."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select, update

from infra.server.refusals import Refused
from infra.server.store.schema import views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.server.store.database import AnyRow

__all__ = ["create", "find", "of_organisation", "remove", "replace"]


def create(connection: Connection, organisation_id: int, name: str, setup: str, *, now_ms: int) -> AnyRow:
    """Save a view. `setup` is compact JSON.

    Raises:
        Refused: Another one has the name.
    """
    _refuse_taken(connection, organisation_id, name)
    uid = str(uuid.uuid4())
    connection.execute(
        insert(views).values(
            uid=uid,
            organisation_id=organisation_id,
            name=name,
            setup=setup,
            created_ms=now_ms,
            updated_ms=now_ms,
        )
    )
    return find(connection, organisation_id, uid)


def of_organisation(connection: Connection, organisation_id: int) -> Sequence[AnyRow]:
    """Return an organisation's views, without their setups, by name."""
    return connection.execute(
        select(views.c.uid, views.c.name, views.c.created_ms, views.c.updated_ms)
        .where(views.c.organisation_id == organisation_id)
        .order_by(views.c.name)
    ).all()


def find(connection: Connection, organisation_id: int, uid: str) -> AnyRow:
    """Return a view.

    Raises:
        Refused: There is none of this id; another organisation's is not there.
    """
    row = connection.execute(
        select(views).where(views.c.organisation_id == organisation_id, views.c.uid == uid)
    ).first()
    if row is None:
        raise Refused("view_not_found", "no view has this id")
    return row


def replace(
    connection: Connection, organisation_id: int, uid: str, *, name: str, setup: str, now_ms: int
) -> AnyRow:
    """Save a view anew under its id.

    Raises:
        Refused: There is none of this id, or another one has the name.
    """
    view = find(connection, organisation_id, uid)
    if name != view.name:
        _refuse_taken(connection, organisation_id, name)
    connection.execute(
        update(views).where(views.c.id == view.id).values(name=name, setup=setup, updated_ms=now_ms)
    )
    return find(connection, organisation_id, uid)


def remove(connection: Connection, organisation_id: int, uid: str) -> AnyRow:
    """Forget a view and return what it was.

    Raises:
        Refused: There is none of this id.
    """
    view = find(connection, organisation_id, uid)
    connection.execute(delete(views).where(views.c.id == view.id))
    return view


def _refuse_taken(connection: Connection, organisation_id: int, name: str) -> None:
    taken = connection.execute(
        select(views.c.uid).where(views.c.organisation_id == organisation_id, views.c.name == name)
    ).scalar()
    if taken is not None:
        raise Refused("view_already_exists", "a view has this name already", details={"viewId": taken})
