"""What the REST API shows of runs. Times are in epoch milliseconds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from infra.server.api.context import principal_of
from infra.server.api.v1.requests import dashboard_of
from infra.server.api.v1.run_checks import understood
from infra.server.store import folders, telemetry
from infra.server.store import runs as rows
from infra.server.store.runs import State

if TYPE_CHECKING:
    from fastapi import Request
    from sqlalchemy import Connection

    from infra.server.store.database import AnyRow

__all__ = ["AttemptMark", "File", "Files", "Item", "Run", "Runs", "item", "run_of", "show"]

Whole = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class File(msgspec.Struct):
    """A file that was shipped."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    size_bytes: Whole
    blake3: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class AttemptMark(msgspec.Struct):
    """Where an attempt begins in a run's telemetry: its points come after `after_seq`."""

    attempt: int
    after_seq: int
    at_ms: int


class Length(msgspec.Struct):
    """How many points a run's telemetry has."""

    points: int
    last_seq: int


class Telemetry(Length):
    """How far a run's telemetry is. `keys` are in order of arrival, `dropped` counts by reason."""

    keys: list[str]
    dropped: dict[str, int]
    attempts: list[AttemptMark]


class Item(msgspec.Struct, kw_only=True):
    """A run in a list. `folder` is a path; `state` says what the experiment's status cannot."""

    id: str
    name: str
    experiment_id: str
    folder: str
    kind: Literal["command", "train"]
    state: State
    reason: str | None
    attempt: int
    exit_code: int | None
    command: list[str] | None
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    page: str
    flow_run_id: str | None
    telemetry: Length


class Run(Item, kw_only=True):
    """A whole run. `layout` and `checks` are what it was launched with.

    `verdicts` say how its checks judged its result, the text of its `result.json`.
    """

    tree: str | None
    meta: dict[str, Any]
    layout: dict[str, Any] | None
    checks: list[dict[str, Any]] | None
    verdicts: list[dict[str, Any]] | None
    result: str | None
    telemetry: Telemetry


class Runs(msgspec.Struct):
    """Some runs."""

    runs: list[Item]


class Files(msgspec.Struct):
    """What was shipped for a run; null where nothing was."""

    tree: str | None
    files: list[File] | None


def run_of(request: Request, connection: Connection, run_id: str) -> AnyRow:
    """Return the row of a run that the one who asks has.

    Raises:
        Refused: It is not there.
    """
    return rows.find(connection, principal_of(request).organisation.id, run_id)


def show(request: Request, connection: Connection, run_id: str) -> Run:
    """Return what is shown of one run.

    Raises:
        Refused: It is not there.
    """
    row = run_of(request, connection, run_id)
    place = folders.place_of(connection, row.folder_id)
    return _shown(request, row, "/" if place is None else place.path)


def _shown(request: Request, row: AnyRow, folder: str) -> Run:
    layout, checks = understood(row.layout, row.checks)
    marks = [AttemptMark(*mark) for mark in json.loads(row.attempts)]
    shown = item(request, row, folder) | {"telemetry": Telemetry(**telemetry.standing(row), attempts=marks)}
    return Run(
        **shown,
        tree=row.tree,
        meta=json.loads(row.meta),
        layout=layout,
        checks=checks,
        verdicts=None if row.verdicts is None else json.loads(row.verdicts),
        result=row.result,
    )


def item(request: Request, row: AnyRow, folder: str) -> dict[str, Any]:
    """Return the fields that a list shows of a run; `folder` is the path of where it is."""
    return {
        "id": row.uid,
        "name": row.slug,
        "experiment_id": row.experiment_uid,
        "folder": folder,
        "kind": row.kind,
        "state": row.state,
        "reason": row.reason,
        "attempt": row.attempt,
        "exit_code": row.exit_code,
        "command": None if row.command is None else json.loads(row.command),
        "created_ms": row.created_ms,
        "started_ms": row.started_ms,
        "ended_ms": row.ended_ms,
        "page": dashboard_of(request) + row.experiment_uid,
        "flow_run_id": row.flow_run_id,
        "telemetry": Length(row.last_seq, row.last_seq),
    }
