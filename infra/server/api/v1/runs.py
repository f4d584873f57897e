"""Runs: made, listed, shown, told how they go.

A run is named by its id or by its name, which is its experiment's slug. A name with a slash stands in no
address: list the runs of that name for the id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, UnsetType

from infra.server.api.context import needs, principal_of, store_of
from infra.server.api.described import Operation, describe
from infra.server.api.news import news_of
from infra.server.api.v1.folders import Ref
from infra.server.api.v1.requests import body_of, change, look, query_of
from infra.server.api.v1.run_checks import FilesRoute, FileText, check_size, read_aside
from infra.server.api.v1.run_shown import File, Files, Item, Run, Runs, item, run_of, show
from infra.server.limits import check, compact_object
from infra.server.refusals import Refused
from infra.server.store import folders
from infra.server.store import runs as rows
from infra.server.store.runs import State
from runtime.events import limits

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["CODES", "Attempt", "router"]


router = APIRouter(prefix="/api/v1", route_class=FilesRoute)
CODES = ("run_not_found",)
MAX_RESULT_BYTES = 262_144
MAX_COMMAND_BYTES = 65_536
MAX_FILES = 50_000
Attempt = Annotated[int, Meta(ge=0, le=rows.MAX_ATTEMPT)]
Name = Annotated[str, Meta(min_length=1, max_length=limits.MAX_SLUG_UNITS)]
Reason = Annotated[str, Meta(max_length=limits.MAX_ERROR_UNITS)]


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
    await read_aside(request, new.telemetry, new.checks)
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
        return show(request, connection, uid)

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
        return Runs([Item(**item(request, row, paths[row.folder_id])) for row in found])

    return await look(request, read)


@router.get("/runs/{run_id}")
@needs("read")
@describe(Operation(data=Run, codes=CODES))
async def show_run(request: Request, run_id: str) -> Response:
    """Show a run."""
    return await look(request, lambda connection: show(request, connection, run_id))


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
    check_size("result", said.get("result"), MAX_RESULT_BYTES)
    store = store_of(request)
    told: list[int] = []

    def work(connection: Connection) -> Run:
        row = run_of(request, connection, run_id)
        rows.change(connection, row, said, now_ms=store.clock_ms())
        told.append(row.id)
        return show(request, connection, row.uid)

    response = await change(request, work)
    for run in told:
        news_of(request).tell(run)
    return response


def _said(body: ChangeRun) -> dict[str, Any]:
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    return {name: value for name, value in fields.items() if value is not UNSET}


def _command(command: list[str]) -> str:
    text = limits.compact(command).decode()
    check_size("command", text, MAX_COMMAND_BYTES)
    return text
