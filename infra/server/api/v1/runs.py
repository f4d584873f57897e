"""Runs: checked, made, listed, shown, told how they go.

A run is named by its id or by its name, which is its experiment's slug. A name with a slash stands in no
address: list the runs of that name for the id.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, UnsetType

from infra.server.api.context import GuardedRoute, needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.news import news_of
from infra.server.api.v1.folders import Ref
from infra.server.api.v1.requests import body_of, change, dashboard_of, look, query_of
from infra.server.limits import check, compact_object
from infra.server.refusals import Refused
from infra.server.store import folders, telemetry
from infra.server.store import runs as rows
from infra.server.store.runs import State
from runtime.events import limits
from runtime.telemetry import checks as check_rules
from runtime.telemetry import layout as layout_rules

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.server.api.body import BodyBudget
    from infra.server.store.database import AnyRow

    _Understood = tuple[dict[str, Any] | None, list[dict[str, Any]] | None]

__all__ = ["CODES", "Attempt", "Run", "router", "run_of"]


class RunsRoute(GuardedRoute):
    """A route whose body names files."""

    max_body_bytes = 16 * 2**20


router = APIRouter(prefix="/api/v1", route_class=RunsRoute)
CODES = ("run_not_found",)
MAX_FILE_TEXT_BYTES = 65_536
MAX_RESULT_BYTES = 262_144
MAX_COMMAND_BYTES = 65_536
MAX_FILES = 50_000
Attempt = Annotated[int, Meta(ge=0, le=rows.MAX_ATTEMPT)]
Name = Annotated[str, Meta(min_length=1, max_length=limits.MAX_SLUG_UNITS)]
FileText = Annotated[str, Meta(max_length=MAX_FILE_TEXT_BYTES)]
Whole = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Reason = Annotated[str, Meta(max_length=limits.MAX_ERROR_UNITS)]


class CheckFiles(msgspec.Struct):
    """What a run would be made with: the text of a `telemetry.toml` and of a `checks.toml`."""

    telemetry: FileText | None = None
    checks: FileText | None = None


class CheckedFiles(msgspec.Struct):
    """The two files as they are understood, every default said."""

    layout: dict[str, Any] | None
    checks: list[dict[str, Any]] | None


class File(msgspec.Struct):
    """A file that was shipped."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    size_bytes: Whole
    blake3: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class NewRun(msgspec.Struct):
    """A run to make. Without a slug it is `run-<n>`; `tree` names what was shipped by its digest."""

    slug: Name | None = None
    folder: Ref | None = None
    telemetry: FileText | None = None
    checks: FileText | None = None
    command: Annotated[list[str], Meta(max_length=4096)] | None = None
    tree: Annotated[str, Meta(pattern="^[0-9a-f]{16,128}$")] | None = None
    files: Annotated[list[File], Meta(max_length=MAX_FILES)] | None = None
    kind: Literal["command", "train"] = "command"
    meta: dict[str, Any] = {}


class ChangeRun(msgspec.Struct):
    """What is said of a run; what is left out stays. `result` is the text of its `result.json`."""

    state: State | UnsetType = UNSET
    reason: Reason | UnsetType | None = UNSET
    attempt: Attempt | UnsetType = UNSET
    exit_code: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | UnsetType | None = UNSET
    flow_run_id: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET
    result: Annotated[str, Meta(max_length=MAX_RESULT_BYTES)] | UnsetType | None = UNSET


class ListRuns(msgspec.Struct):
    """Which runs are wanted: those of a name, those made before the one of an id."""

    name: Name | None = None
    before: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50


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


@router.post("/runs/check")
@needs("write")
@describe(
    Operation(
        data=CheckedFiles,
        body=CheckFiles,
        codes=("telemetry_unreadable", "checks_unreadable", "limit_exceeded"),
        examples={"a layout": {"telemetry": '[[panel]]\ny = "loss"\n', "checks": None}},
    )
)
async def check_run(request: Request) -> Response:
    """Say whether a run could be made with these files, and how they are understood."""
    files = await body_of(request, CheckFiles)
    layout, checks = await _read_aside(request, files.telemetry, files.checks)
    return await look(request, lambda _connection: CheckedFiles(layout, checks))


@router.post("/runs")
@needs("write")
@describe(
    Operation(
        repeatable=True,
        data=Run,
        body=NewRun,
        codes=(
            "folder_not_found",
            "telemetry_unreadable",
            "checks_unreadable",
            "limit_exceeded",
            "invalid_event",
        ),
        examples={
            "a command": {"command": ["python", "train.py"], "telemetry": '[[panel]]\ny = "loss"\n'},
            "a slug": {"slug": "warm-up", "kind": "train", "meta": {"lr": 0.1}},
        },
    )
)
async def create_run(request: Request) -> Response:
    """Make a run, and an experiment of its name where there is none.

    A run that has the slug already is launched again with what is sent: it keeps its name, its telemetry and
    its count of attempts.
    """
    new = await body_of(request, NewRun)
    if new.slug is not None:
        check(limits.check_slug, new.slug)
    await _read_aside(request, new.telemetry, new.checks)
    command = None if new.command is None else _command(new.command)
    meta = compact_object(new.meta, field="meta")
    files = None if new.files is None else rows.packed(msgspec.to_builtins(new.files))
    organisation, store = principal_of(request).organisation, store_of(request)

    def work(connection: Connection) -> Run:
        uid = rows.create(
            connection,
            organisation.id,
            rows.New(
                slug=new.slug,
                folder_id=folders.resolve(connection, organisation.id, new.folder),
                kind=new.kind,
                layout=new.telemetry,
                checks=new.checks,
                command=command,
                tree=new.tree,
                files=files,
                meta=meta,
            ),
            now_ms=store.clock_ms(),
        )
        return _show(request, connection, uid)

    return await change(request, work)


@router.get("/runs")
@needs("read")
@describe(Operation(data=Runs, query=ListRuns, codes=CODES))
async def list_runs(request: Request) -> Response:
    """List runs, the one made last first. `before` an id goes on where a list ended."""
    wanted = query_of(request, ListRuns)
    organisation = principal_of(request).organisation

    def read(connection: Connection) -> Runs:
        found = rows.listed(
            connection, organisation.id, name=wanted.name, before=wanted.before, limit=wanted.limit
        )
        paths = folders.paths(connection, organisation.id)
        return Runs([Item(**_item(request, row, paths[row.folder_id])) for row in found])

    return await look(request, read)


@router.get("/runs/{run_id}")
@needs("read")
@describe(Operation(data=Run, codes=CODES))
async def show_run(request: Request, run_id: str) -> Response:
    """Show a run."""
    return await look(request, lambda connection: _show(request, connection, run_id))


@router.get("/runs/{run_id}/files")
@needs("read")
@describe(Operation(data=Files, codes=CODES))
async def show_files(request: Request, run_id: str) -> Response:
    """List the files that were shipped for a run."""

    def read(connection: Connection) -> Files:
        row = run_of(request, connection, run_id)
        return Files(row.tree, msgspec.convert(rows.files_of(connection, row.id), list[File] | None))

    return await look(request, read)


@router.patch("/runs/{run_id}")
@needs("write")
@describe(
    Operation(
        repeatable=True,
        data=Run,
        body=ChangeRun,
        codes=(*CODES, "superseded", "limit_exceeded"),
        examples={
            "it runs": {"state": "running", "attempt": 1},
            "it ended": {"state": "done", "attempt": 1, "exit_code": 0, "result": '{"f1": 0.97}'},
        },
    )
)
async def change_run(request: Request, run_id: str) -> Response:
    """Say how a run goes. With a final state its checks judge its result.

    Whoever says which attempt they are is refused once a newer one has spoken.
    """
    said = _said(await body_of(request, ChangeRun))
    if not said:
        raise Refused("invalid_request", "a run's change needs at least one of the fields that a run has")
    _check_size("result", said.get("result"), MAX_RESULT_BYTES)
    store = store_of(request)
    told: list[int] = []

    def work(connection: Connection) -> Run:
        row = run_of(request, connection, run_id)
        rows.change(connection, row, said, now_ms=store.clock_ms())
        told.append(row.id)
        return _show(request, connection, row.uid)

    response = await change(request, work)
    for run in told:
        news_of(request).tell(run)
    return response


def run_of(request: Request, connection: Connection, run_id: str) -> AnyRow:
    """Return the row of a run that the one who asks has.

    Raises:
        Refused: It is not there.
    """
    return rows.find(connection, principal_of(request).organisation.id, run_id)


def _show(request: Request, connection: Connection, run_id: str) -> Run:
    row = run_of(request, connection, run_id)
    place = folders.place_of(connection, row.folder_id)
    return _shown(request, row, "/" if place is None else place.path)


def _shown(request: Request, row: AnyRow, folder: str) -> Run:
    layout, checks = _understood(row.layout, row.checks)
    marks = [AttemptMark(*mark) for mark in json.loads(row.attempts)]
    shown = _item(request, row, folder) | {"telemetry": Telemetry(**telemetry.standing(row), attempts=marks)}
    return Run(
        **shown,
        tree=row.tree,
        meta=json.loads(row.meta),
        layout=layout,
        checks=checks,
        verdicts=None if row.verdicts is None else json.loads(row.verdicts),
        result=row.result,
    )


def _item(request: Request, row: AnyRow, folder: str) -> dict[str, Any]:
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


async def _read_aside(request: Request, layout: str | None, checks: str | None) -> _Understood:
    """Return what `_understood` does, beside the loop: 64 KiB can be written to take seconds to be read."""
    budget: BodyBudget = request.app.state.body_budget
    async with budget.turn:
        return await to_thread.run_sync(_understood, layout, checks)


def _understood(layout: str | None, checks: str | None) -> _Understood:
    """Return the two files as they are understood.

    Raises:
        Refused: One of them cannot be read; the message says which table and which key.
    """
    _check_size("telemetry", layout, MAX_FILE_TEXT_BYTES)
    _check_size("checks", checks, MAX_FILE_TEXT_BYTES)
    try:
        understood = None if layout is None else layout_rules.parse_layout(layout).to_json()
    except layout_rules.LayoutError as error:
        raise Refused("telemetry_unreadable", str(error)) from error
    try:
        judged = None if checks is None else [one.to_json() for one in check_rules.parse_checks(checks)]
    except layout_rules.LayoutError as error:
        raise Refused("checks_unreadable", str(error)) from error
    return understood, judged


def _said(body: ChangeRun) -> dict[str, Any]:
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    return {name: value for name, value in fields.items() if value is not UNSET}


def _command(command: list[str]) -> str:
    text = limits.compact(command).decode()
    _check_size("command", text, MAX_COMMAND_BYTES)
    return text


def _check_size(field: str, text: str | None, limit: int) -> None:
    size = 0 if text is None else len(text.encode())
    if size > limit:
        raise Refused(
            "limit_exceeded",
            f"{field} takes at most {limit:,} bytes, got {size:,}",
            details={"field": field, "size": size, "limit": limit},
        )
