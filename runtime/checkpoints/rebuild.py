"""A lost `run.json`, made again from the manifests: `python -m runtime.checkpoints.rebuild LOCATION`."""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import sys
from typing import TYPE_CHECKING

from blake3 import blake3

from runtime.checkpoints.format import Damaged, Manifest, decode_manifest
from runtime.checkpoints.location import now_ms, open_store
from runtime.checkpoints.record import RECORD_KEY, AttemptEntry, CheckpointEntry, RunRecord, write_record
from runtime.checkpoints.store import Conflict, Missing, Store
from runtime.errors import Rejected, RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["main", "rebuild_record"]

_FILE = re.compile(r"step-\d+/(manifest|tensors)-(\d+)-\d+\b")

_log = logging.getLogger(__name__)


def rebuild_record(store: Store, *, clock_ms: Callable[[], int] = now_ms) -> RunRecord:
    """Write a record that names every checkpoint of which all files are there.

    What was rewound past stays out: an attempt's manifests say at which step it began. The files' digests
    are checked when a checkpoint is next read. Whoever still believes to own the run is superseded.

    Raises:
        Rejected: a record stands there already, or there is nothing to make one from.
        Unavailable: the location cannot be reached.
    """
    sizes = {found.key: found.size_bytes for found in store.list("step-")}
    attempts = [int(match[2]) for key in sizes if (match := _FILE.match(key))]
    found = [both for key in sorted(sizes) if "/manifest-" in key and (both := _read(store, key, sizes))]
    slugs = sorted({manifest.slug for _, manifest in found})
    if len(slugs) != 1:
        raise Rejected(f"{store.url} holds whole checkpoints of {slugs or 'no run'}: a record is of one slug")
    record = RunRecord(
        slug=slugs[0],
        attempt=AttemptEntry(
            number=max(attempts) + 1,  # a live attempt may have claimed a number and stored nothing yet
            session=secrets.token_hex(16),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=clock_ms(),
        ),
        checkpoints=_not_rewound(found),
    )
    try:
        write_record(store, record, etag=None)
    except Conflict as error:
        raise Rejected(f"{store.url}/{RECORD_KEY} is there: move it away first, if it is broken") from error
    return record


def _read(store: Store, key: str, sizes: Mapping[str, int]) -> tuple[CheckpointEntry, Manifest] | None:
    try:
        data, _ = store.get(key)
        manifest = decode_manifest(data)
    except (Damaged, Missing) as error:
        _log.warning("%s is left out: %s", key, error)
        return None
    folder = key.rpartition("/")[0]
    for file in manifest.files:
        if sizes.get(f"{folder}/{file.name}") != file.size_bytes:
            _log.warning("%s is left out: %s is missing or of another size", key, file.name)
            return None
    entry = CheckpointEntry(
        step=manifest.step,
        attempt=manifest.attempt,
        published_ms=manifest.created_ms,
        manifest=key,
        manifest_blake3=blake3(data).hexdigest(),
        segments=manifest.segments,
    )
    return entry, manifest


def _not_rewound(found: Sequence[tuple[CheckpointEntry, Manifest]]) -> tuple[CheckpointEntry, ...]:
    """What is left when each attempt has given up what older ones published after the step it began at."""
    kept: list[CheckpointEntry] = []
    began_at: float = float("inf")
    for attempt in sorted({entry.attempt for entry, _ in found}, reverse=True):
        own = [(entry, manifest) for entry, manifest in found if entry.attempt == attempt]
        kept += [entry for entry, _ in own if entry.step <= began_at]
        began_at = min(began_at, own[0][1].started_from)
    return tuple(sorted(kept, key=lambda entry: entry.order))


def main(arguments: Sequence[str]) -> int:
    """Rebuild the record of the one location named; return the exit code."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m runtime.checkpoints.rebuild LOCATION\n")
        return Rejected.exit_code
    try:
        record = rebuild_record(open_store(arguments[0], os.environ))
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    steps = ", ".join(str(entry.step) for entry in record.checkpoints)
    sys.stdout.write(f"{record.slug}: the record names the checkpoints of steps {steps}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
