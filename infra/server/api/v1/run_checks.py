"""What a run would be made with, checked before it is made: its two files as they are understood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from infra.server.api.context import GuardedRoute, needs, principal_of
from infra.server.api.described import Operation, describe
from infra.server.api.v1.folders import Ref
from infra.server.api.v1.requests import body_of, look
from infra.server.refusals import Refused
from infra.server.store import folders
from runtime.telemetry import checks as check_rules
from runtime.telemetry import layout as layout_rules

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.server.api.body import BodyBudget

    _Understood = tuple[dict[str, Any] | None, list[dict[str, Any]] | None]

__all__ = ["FileText", "FilesRoute", "check_size", "read_aside", "router", "understood"]

MAX_FILE_TEXT_BYTES = 65_536
FileText = Annotated[str, Meta(max_length=MAX_FILE_TEXT_BYTES)]


class FilesRoute(GuardedRoute):
    """A route whose body names files."""

    max_body_bytes = 16 * 2**20


router = APIRouter(prefix="/api/v1", route_class=FilesRoute)


class CheckFiles(msgspec.Struct):
    """What a run would be made with: its folder, the text of a `telemetry.toml` and of a `checks.toml`."""

    folder: Ref | None = None
    telemetry: FileText | None = None
    checks: FileText | None = None


class CheckedFiles(msgspec.Struct):
    """The two files as they are understood, every default said."""

    layout: dict[str, Any] | None
    checks: list[dict[str, Any]] | None


@router.post("/runs/check")
@needs("write")
@describe(
    Operation(
        data=CheckedFiles,
        body=CheckFiles,
        codes=("folder_not_found", "telemetry_unreadable", "checks_unreadable", "limit_exceeded"),
        examples={"a layout": {"telemetry": '[[panel]]\ny = "loss"\n', "checks": None}},
    )
)
async def check_run(request: Request) -> Response:
    """Say whether a run could be made with these, and how the files are understood."""
    asked = await body_of(request, CheckFiles)
    layout, checks = await read_aside(request, asked.telemetry, asked.checks)
    organisation = principal_of(request).organisation

    def work(connection: Connection) -> CheckedFiles:
        folders.resolve(connection, organisation.id, asked.folder)
        return CheckedFiles(layout, checks)

    return await look(request, work)


async def read_aside(request: Request, layout: str | None, checks: str | None) -> _Understood:
    """Return what `understood` does, beside the loop: 64 KiB can be written to take seconds to be read."""
    budget: BodyBudget = request.app.state.body_budget
    async with budget.turn:
        return await to_thread.run_sync(understood, layout, checks)


def understood(layout: str | None, checks: str | None) -> _Understood:
    """Return the two files as they are understood.

    Raises:
        Refused: One of them cannot be read; the message says which table and which key.
    """
    check_size("telemetry", layout, MAX_FILE_TEXT_BYTES)
    check_size("checks", checks, MAX_FILE_TEXT_BYTES)
    try:
        laid_out = None if layout is None else layout_rules.parse_layout(layout).to_json()
    except layout_rules.LayoutError as error:
        raise Refused("telemetry_unreadable", str(error)) from error
    try:
        judged = None if checks is None else [one.to_json() for one in check_rules.parse_checks(checks)]
    except layout_rules.LayoutError as error:
        raise Refused("checks_unreadable", str(error)) from error
    return laid_out, judged


def check_size(field: str, text: str | None, limit: int) -> None:
    """See that a text is not too long.

    Raises:
        Refused: It has more than `limit` bytes.
    """
    size = 0 if text is None else len(text.encode())
    if size > limit:
        raise Refused(
            "limit_exceeded",
            f"{field} takes at most {limit:,} bytes, got {size:,}",
            details={"field": field, "size": size, "limit": limit},
        )
