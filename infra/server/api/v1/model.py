"""What the REST API shows of folders, experiments, ingestion keys and annotations. Times are in epoch ms."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from infra.server.store.lifecycle import quiet_ms

if TYPE_CHECKING:
    from infra.server.store.access import Organisation
    from infra.server.store.database import AnyRow
    from infra.server.store.folders import Place

__all__ = [
    "Annotation",
    "Experiment",
    "Folder",
    "IngestionKey",
    "Item",
    "Shown",
    "Status",
    "annotation",
    "ingestion_key",
]

Status = Literal["created", "running", "done", "error"]


class Folder(msgspec.Struct):
    """A folder. `parent_id_path` holds the ids of those above it, the outermost first."""

    folder_id: str
    org_id: str
    name: str
    parent_id_path: list[str]
    path_name: str


class Item(msgspec.Struct, kw_only=True):
    """An experiment in a list. `folder` is null at the root.

    `quiet` says that it runs and gave no sign of life for two minutes; its status stays what it said.
    """

    id: str
    org_id: str
    folder: Folder | None
    url: str
    slug: str
    display_name: str | None
    status: Status
    quiet: bool
    created_at_ms: int
    updated_at_ms: int
    started_at_ms: int | None
    done_at_ms: int | None
    last_heartbeat_at_ms: int | None
    last_event_at_ms: int | None


class Experiment(Item, kw_only=True):
    """A whole experiment. A revision changes with what it counts: the record and annotations, or points."""

    description: str
    metadata: dict[str, Any]
    error_name: str | None
    error_detail: str | None
    experiment_revision: int
    series_revision: int


class IngestionKey(msgspec.Struct):
    """A key that writes to one experiment, without its secret. The last use is noted to the minute."""

    id: str
    experiment_id: str
    name: str
    created_at_ms: int
    expires_at_ms: int
    revoked_at_ms: int | None
    last_used_at_ms: int | None


class Annotation(msgspec.Struct):
    """A text and an object at a point in time; `step` is that of its metadata, where it is an integer."""

    id: str
    experiment_id: str
    annotation: str
    metadata: dict[str, Any]
    step: int | None
    created_at_ms: int


class Shown:
    """Makes what is shown of rows, within one organisation. `dashboard` is the address of the pages."""

    def __init__(self, organisation: Organisation, dashboard: str, *, now_ms: int) -> None:
        self._organisation = organisation
        self._dashboard = dashboard
        self._now_ms = now_ms

    def folder(self, place: Place) -> Folder:
        """Show a folder."""
        return Folder(place.uid, self._organisation.uid, place.name, list(place.parent_uids), place.path)

    def item(self, row: AnyRow, place: Place | None) -> Item:
        """Show an experiment in a list."""
        return Item(**self._item(row, place))

    def experiment(self, row: AnyRow, place: Place | None) -> Experiment:
        """Show a whole experiment."""
        name, detail = _error(row)
        return Experiment(
            **self._item(row, place),
            description=row.description,
            metadata=json.loads(row.meta),
            error_name=name,
            error_detail=detail,
            experiment_revision=row.experiment_revision,
            series_revision=row.series_revision,
        )

    def _item(self, row: AnyRow, place: Place | None) -> dict[str, Any]:
        return {
            "id": row.uid,
            "org_id": self._organisation.uid,
            "folder": None if place is None else self.folder(place),
            "url": self._dashboard + row.uid,
            "slug": row.slug,
            "display_name": row.display_name,
            "status": row.status,
            "quiet": quiet_ms(row, self._now_ms) is not None,
            "created_at_ms": row.created_ms,
            "updated_at_ms": row.updated_ms,
            "started_at_ms": row.started_ms,
            "done_at_ms": row.done_ms,
            "last_heartbeat_at_ms": row.last_heartbeat_ms,
            "last_event_at_ms": row.last_event_ms,
        }


def ingestion_key(row: AnyRow, experiment_uid: str) -> IngestionKey:
    """Show an ingestion key."""
    return IngestionKey(
        row.uid,
        experiment_uid,
        row.name,
        row.created_ms,
        row.expires_ms,
        row.revoked_ms,
        row.last_used_ms,
    )


def annotation(row: AnyRow, experiment_uid: str) -> Annotation:
    """Show an annotation."""
    meta = json.loads(row.meta)
    step = meta.get("step")
    return Annotation(row.uid, experiment_uid, row.text, meta, step if type(step) is int else None, row.at_ms)


def _error(row: AnyRow) -> tuple[str | None, str | None]:
    """Take an error's text apart: its type stands in its metadata, and before a colon in the text."""
    if row.error_message is None:
        return None, None
    name = json.loads(row.error_meta or "{}").get("error_type")
    if not isinstance(name, str):
        return "Error", row.error_message
    if row.error_message == name:
        return name, ""
    return name, row.error_message.removeprefix(f"{name}: ")
