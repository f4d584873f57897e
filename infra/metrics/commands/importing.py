"""`syvain-metrics import`: the event files that runs write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.client.errors import Refused, Rejected
from infra.client.output import print_fields, print_json, say
from infra.metrics.commands._common import Json, connect

if TYPE_CHECKING:
    from infra.metrics.api import Api
    from infra.metrics.importer import Report

__all__ = ["import_"]


def import_(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Event files: what --metrics jsonl:PATH wrote.")
    ],
    *,
    folder: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where to put an experiment that is in no folder: path or id."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add to the server what it lacks of runs' event files. Importing again adds nothing twice."""
    from infra.metrics.event_file import EventFile
    from infra.metrics.importer import Importer
    from infra.metrics.progress import progress
    from runtime.events.syvain.client import MetricsClient
    from runtime.events.syvain.settings import metrics_settings

    read = [EventFile(Path(file)) for file in files]  # all of them are checked before anything is sent
    num_events = sum(attempt.num_lines for file in read for attempt in file.attempts)
    client = MetricsClient(metrics_settings(os.environ))
    reports: list[Report] = []
    try:
        with connect() as api, progress("importing", num_events) as show:
            importer = Importer(
                api, client, folder_id=_folder_id(api, folder), show=lambda num: show(num, "")
            )
            for file in read:
                reports += importer.run(file)
    finally:
        client.close()
    _tell(read_torn=[(file.path, file.num_torn_bytes) for file in read if file.num_torn_bytes])
    _print(reports, client.host, as_json=as_json)
    if num_refused := sum(sum(report.refused.values()) for report in reports):
        raise Refused(f"the server refused {num_refused:,} events; everything else is there")


def _folder_id(api: Api, folder: str | None) -> str | None:
    if folder is None:
        return None
    from infra.client.api import part
    from infra.metrics.find import folder_ref

    ref = folder_ref(folder)
    if ref == "/":
        raise Rejected("--folder / is where an experiment is anyway: name a folder, or leave it out")
    return str(api.get(f"folders/{part(ref)}")["folder"]["folder_id"])


def _tell(*, read_torn: list[tuple[Path, int]]) -> None:
    for path, num_bytes in read_torn:
        say(f"{path}: the last line has no end ({num_bytes:,} bytes) and was left out")


def _print(reports: list[Report], host: str, *, as_json: bool) -> None:
    told = [_plain(report, host) for report in reports]
    if as_json:
        print_json(told)
        return
    for fields in told:
        refused = ", ".join(f"{num:,} ({code})" for code, num in fields.pop("refused").items())
        print_fields({name.replace("_", " "): value for name, value in fields.items()})
        if refused:
            print_fields({"refused": refused})


def _plain(report: Report, host: str) -> dict[str, Any]:
    return {
        "slug": report.slug,
        "experiment_id": report.experiment_id,
        "url": f"{host}/dashboard/experiments/{report.experiment_id}",
        "attempts": report.num_attempts,
        "points_added": report.num_points,
        "annotations_added": report.num_annotations,
        "already_there": report.num_there,
        "not_finite": report.num_not_finite,
        "ending": report.ending or None,
        "refused": dict(report.refused),
    }
