"""`div list`, `div show` and `div files`: which runs there are, how one goes, what was shipped for it."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.client.output import print_fields, print_json, print_table, say, shown, time_of
from runtime.telemetry.rules import number_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Json", "RunName", "files", "list_", "show"]

RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's name or id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_PAGE = 1_000


def list_(
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    """List runs, the one made last first."""
    from flows.div.api import connect

    found: list[dict[str, Any]] = []
    with connect() as api:
        while len(found) < limit:
            asked = min(limit - len(found), _PAGE)
            page = api.runs(limit=asked, before=found[-1]["id"] if found else None)
            found += page
            if len(page) < asked:
                break
    if as_json:
        print_json(found)
        return
    print_table(
        ("RUN", "STATE", "ATTEMPT", "POINTS", "CREATED", "ENDED", "COMMAND"),
        [
            (
                run["name"],
                run["state"],
                run["attempt"],
                run["telemetry"]["points"],
                time_of(run["created_ms"]),
                time_of(run["ended_ms"]),
                _command(run),
            )
            for run in found
        ],
    )


def show(run: RunName, *, as_json: Json = False) -> None:
    """Show one run: how it goes, what it was launched with, its result and how its checks judge it."""
    from flows.div.api import connect

    with connect() as api:
        found = api.run(run)
    if as_json:
        print_json(found)
        return
    telemetry = found["telemetry"]
    print_fields(
        {
            "run": found["name"],
            "state": found["state"],
            "reason": found["reason"],
            "attempt": found["attempt"] or None,
            "exit code": found["exit_code"],
            "command": _command(found),
            "folder": found["folder"],
            "page": found["page"],
            "created": time_of(found["created_ms"]),
            "started": time_of(found["started_ms"]),
            "ended": time_of(found["ended_ms"]),
            "points": telemetry["points"],
            "keys": " ".join(telemetry["keys"]) or None,
            "dropped": sum(telemetry["dropped"].values()) or None,
            "tree": found["tree"],
            "meta": found["meta"] or None,
            "result": _compact(found["result"]),
            **dict(_attempts(telemetry["attempts"])),
            **dict(_checks(found)),
        }
    )


def files(run: RunName, *, as_json: Json = False) -> None:
    """List what was shipped for a run."""
    from flows.div.api import connect

    with connect() as api:
        found = api.files(run)
    if as_json:
        print_json(found or [])
        return
    if found is None:
        say(f"files: nothing was shipped for {shown(run)}")
        return
    print_table(
        ("PATH", "BYTES", "BLAKE3"), [(one["path"], one["size_bytes"], one["blake3"]) for one in found]
    )


def _command(run: Mapping[str, Any]) -> str | None:
    return None if run["command"] is None else shlex.join(run["command"])


def _attempts(marks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for mark in marks:
        yield f"attempt {mark['attempt']}", f"from point {mark['after_seq'] + 1}, {time_of(mark['at_ms'])}"


def _checks(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each check with how it came out, or that it waits for the run's end."""
    for number, check in enumerate(run["verdicts"] or run["checks"] or (), start=1):
        asked = f"{check['key']} {check['op']} {number_text(check['threshold'])}"
        if "passed" not in check:
            said = f"{asked}, judged when the run ends"
        elif check["passed"]:
            said = f"passed: {asked}, got {number_text(check['value'])}"
        else:
            said = f"failed: {asked}: {check['reason']}"
        yield f"check {number}", said


def _compact(result: str | None) -> str | None:
    """Return the run's own JSON on one line; what is no JSON stays as it is."""
    if result is None:
        return None
    try:
        return json.dumps(json.loads(result), ensure_ascii=False)
    except (ValueError, RecursionError):
        return result
