"""What the Telemetry tab of an experiment shows of its run."""

from __future__ import annotations

import json
import re
import shlex
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from infra.server.board import board
from infra.server.store import deflated, run_logs, runs
from runtime.telemetry import rules
from runtime.telemetry.layout import LayoutError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.server.store.database import AnyRow
    from runtime.telemetry.layout import Panel, Stat

    Summary = dict[str, dict[str, int | float]]

__all__ = ["run", "state", "unsaid"]

_MAX_FILES = 500
_LOG_TAIL_BYTES = 32 * 1024
_LOG_TAIL_LINES = 200
_SAID = {"created": "scheduled", "running": "running", "done": "done", "error": "failed"}
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""What colours a terminal."""


def unsaid(status: str, state: str | None) -> str | None:
    """Return the state of an experiment's run if the status does not say the same; None if it does."""
    return None if state is None or _SAID[status] == state else state


def state(connection: Connection, organisation_id: int, experiment_id: int) -> dict[str, Any] | None:
    """Return what an experiment's run says of itself besides the status; None when it has no run."""
    row = runs.of_experiment(connection, organisation_id, experiment_id)
    return None if row is None else {"state": row.state, "reason": row.reason}


def run(connection: Connection, organisation_id: int, experiment_id: int) -> dict[str, Any] | None:
    """Return what the tab shows of an experiment's run; None when it has none."""
    row = runs.of_experiment(connection, organisation_id, experiment_id)
    if row is None:
        return None
    return {
        "id": row.uid,
        "name": row.slug,
        "state": row.state,
        "reason": row.reason,
        "final": row.state in runs.FINAL,
        "attempt": row.attempt,
        "exit_code": row.exit_code,
        "command": None if row.command is None else shlex.join(json.loads(row.command)),
        "created_ms": row.created_ms,
        "started_ms": row.started_ms,
        "ended_ms": row.ended_ms,
        "points": row.last_seq,
        "dropped": rules.dropped_lines(json.loads(row.dropped)),
        "verdicts": json.loads(row.verdicts or "null"),
        "checks": row.checks is not None,
        "result": row.result,
        "files": _files(connection, row),
        "log": _log(connection, row),
        "board": _board(row),
    }


def _board(row: AnyRow) -> dict[str, Any]:
    summary: Summary = {
        key: {"count": count, "last": last, "min": low, "max": high}
        for key, count, last, low, high in json.loads(row.summary)
    }
    try:
        shown = board(row.layout, list(summary))
    except LayoutError as error:  # a later version's rules are stricter than those it was made under
        return {"id": "", "unreadable": str(error), "panels": [], "stats": []}
    layout = f"x {shown.x}" if row.layout is None else row.layout
    return {
        "id": blake2b(layout.encode(), digest_size=8).hexdigest(),
        "unreadable": None,
        "panels": [_panel(place, panel, summary) for place, panel in enumerate(shown.panels)],
        "stats": [_stat(stat, summary) for stat in shown.stats],
    }


def _panel(place: int, panel: Panel, summary: Summary) -> dict[str, Any]:
    lasts = {key: summary[key]["last"] if key in summary else None for key in panel.y}
    return {
        "place": place,
        "title": panel.title,
        "x": panel.x or "the point's place in the run",
        "scale": panel.scale,
        "wide": panel.wide,
        "keys": lasts,
        "written": any(last is not None for last in lasts.values()),
    }


def _stat(stat: Stat, summary: Summary) -> dict[str, Any]:
    return {
        "title": stat.title,
        "reduce": stat.reduce,
        "values": {key: summary[key][stat.reduce] if key in summary else None for key in stat.y},
    }


def _files(connection: Connection, row: AnyRow) -> dict[str, Any] | None:
    found = runs.files_of(connection, row.id)
    if found is None:
        return None
    size = sum(file["size_bytes"] for file in found)
    return {"count": len(found), "size_bytes": size, "tree": row.tree, "first": found[:_MAX_FILES]}


def _log(connection: Connection, row: AnyRow) -> dict[str, Any] | None:
    log = run_logs.newest(connection, row.id)
    if log is None:
        return None
    after = max(0, log.kept - _LOG_TAIL_BYTES)
    packed = run_logs.parts(lambda work: work(connection), log, after=after)
    text = b"".join(deflated.unpack(part.data) for part in packed).decode(errors="replace")
    lines = [_as_seen(line) for line in text.removesuffix("\n").split("\n")]
    if after and len(lines) > 1:
        del lines[0]  # it may be cut; a progress bar may be all that there is
    return {
        "attempt": log.attempt,
        "size_bytes": log.kept,
        "whole": after == 0 and len(lines) <= _LOG_TAIL_LINES,
        "tail": "\n".join(lines[-_LOG_TAIL_LINES:]),
        "earlier": [one.attempt for one in run_logs.of_run(connection, row.id) if one.attempt != log.attempt],
    }


def _as_seen(line: str) -> str:
    """Return a line as a terminal shows it in the end: without colours, a progress bar's last state alone."""
    shown = _ESCAPES.sub("", line).rstrip("\r")
    return shown.rpartition("\r")[2]
