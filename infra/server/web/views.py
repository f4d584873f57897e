"""What the pages show, read from the store and said for people."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from infra.server.store import annotations as annotation_rows
from infra.server.store import experiments as experiment_rows
from infra.server.store import folders, lifecycle, runs, series
from infra.server.web import run_view

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.server.store.database import AnyRow

__all__ = ["experiment", "experiments", "kind_of", "number", "size", "telemetry"]

_MAX_EXPERIMENTS = 1000
_MAX_SERIES = 500
_MAX_ANNOTATIONS = 500
_KINDS = {
    "resume": re.compile(r"resumed from "),
    "checkpoint": re.compile(r"checkpoint "),
    "stage": re.compile(r"stage .+ -> "),
    "interrupted": re.compile(r"interrupted by "),
    "failed": re.compile(r"failed: "),
}


def experiments(connection: Connection, organisation_id: int, now_ms: int) -> dict[str, Any]:
    """Return what the list shows."""
    paths = folders.paths(connection, organisation_id)
    rows = experiment_rows.newest(connection, organisation_id, limit=_MAX_EXPERIMENTS)
    states = runs.states(connection, [row.id for row in rows])
    return {
        "experiments": [
            {**_head(row, paths, now_ms), "unsaid": run_view.unsaid(row.status, states.get(row.id))}
            for row in rows
        ],
        "limit": _MAX_EXPERIMENTS,
    }


def experiment(connection: Connection, organisation_id: int, uid: str, now_ms: int) -> dict[str, Any]:
    """Return what an experiment's page shows.

    Raises:
        Refused: There is none of this id.
    """
    row = experiment_rows.find(connection, organisation_id, uid)
    run = run_view.state(connection, organisation_id, row.id)
    values = series.last_points(connection, row.id, limit=_MAX_SERIES)
    notes = annotation_rows.of_experiment(connection, row.id, limit=_MAX_ANNOTATIONS)
    return {
        **_shown(connection, organisation_id, row, run, now_ms),
        "tab": "metrics",
        "meta": json.dumps(json.loads(row.meta), indent=2, ensure_ascii=False),
        "attempts": lifecycle.num_started(connection, row.id),
        "step": max((value["step"] for value in values if value["step"] is not None), default=None),
        "metrics": list(dict.fromkeys(value["name"] for value in values)),
        "values": values,
        "annotations": [_note(one) for one in notes],
        "limits": {"series": _MAX_SERIES, "annotations": _MAX_ANNOTATIONS},
    }


def telemetry(connection: Connection, organisation_id: int, uid: str, now_ms: int) -> dict[str, Any]:
    """Return what an experiment's Telemetry tab shows.

    Raises:
        Refused: There is none of this id.
    """
    row = experiment_rows.find(connection, organisation_id, uid)
    run = run_view.run(connection, organisation_id, row.id)
    return {**_shown(connection, organisation_id, row, run, now_ms), "tab": "telemetry"}


def kind_of(annotation: str) -> str:
    """Return what an annotation of a run marks on the time line; `note` for anything else."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.match(annotation)), "note")


def number(value: float) -> str:
    """Return a value as people read it: a whole one whole, else six digits that count."""
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else f"{value:.6g}"


def size(size_bytes: int) -> str:
    """Return a size as people read it."""
    amount, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.1f} {units[0]}" if units[0] != "B" else f"{size_bytes} B"


def _shown(
    connection: Connection, organisation_id: int, row: AnyRow, run: dict[str, Any] | None, now_ms: int
) -> dict[str, Any]:
    """Return what both tabs of an experiment show."""
    return {
        "experiment": _head(row, folders.paths(connection, organisation_id), now_ms),
        "record": experiment_rows.record(row),
        "run": run,
        "unsaid": run_view.unsaid(row.status, run["state"] if run else None),
    }


def _head(row: AnyRow, paths: dict[int | None, str], now_ms: int) -> dict[str, Any]:
    return {
        "id": row.uid,
        "slug": row.slug,
        "name": row.display_name,
        "description": row.description,
        "status": row.status,
        "quiet": lifecycle.quiet_ms(row, now_ms) is not None,
        "folder": paths[row.folder_id],
        "last_ms": lifecycle.last_sign_ms(row),
        "revision": f"{row.experiment_revision}.{row.series_revision}",
    }


def _note(annotation: dict[str, Any]) -> dict[str, Any]:
    meta = dict(annotation["meta"])
    step = meta.pop("step", None)
    first, _, rest = annotation["annotation"].partition("\n")
    return {
        "id": annotation["annotationId"],
        "at_ms": annotation["createdAtMs"],
        "step": step if isinstance(step, int) and not isinstance(step, bool) else None,
        "kind": kind_of(annotation["annotation"]),
        "first": first,
        "rest": rest,
        "meta": json.dumps(meta, ensure_ascii=False, indent=2) if meta else "",
    }
