"""Deleting what the record does not name: dropped checkpoints, and what dead attempts left."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from runtime.checkpoints.record import CheckpointEntry, RunRecord, read_record
from runtime.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runtime.checkpoints.store import Object, Store

__all__ = ["SEGMENTS", "file_token", "purge", "sweep"]

SEGMENTS = "segments"
OLD_AFTER_MS = 60 * 60 * 1000
_FILE = re.compile(r"step-\d+/(?:manifest|tensors)-((\d+)-\d+)\b")

_log = logging.getLogger(__name__)


def file_token(attempt: int, save: int) -> str:
    """What the names of one save's files carry, so that no two saves of a run share a file."""
    return f"{attempt:04d}-{save:04d}"


def purge(store: Store, dropped: Iterable[CheckpointEntry], segments: Iterable[str]) -> None:
    """Delete the files of checkpoints that the record no longer names, and these segments; never raise.

    What cannot be deleted is logged and left to a later attempt's sweep.
    """
    try:
        keys = [f"{SEGMENTS}/{name}" for name in segments]
        for entry in dropped:
            folder, _, name = entry.manifest.rpartition("/")
            token = name.removeprefix("manifest-").removesuffix(".json")
            keys += [found.key for found in store.list(f"{folder}/") if _token(found.key) == token]
        # Manifests first: one without its shards could be taken for a checkpoint by a rebuild.
        store.delete(sorted(keys, key=lambda key: "/manifest-" not in key))
    except RunError as error:
        _log.warning("old checkpoints are left for a later attempt to delete: %s", error)
    except Exception:  # noqa: BLE001  (clean-up never fails a run)
        _log.exception("old checkpoints are left for a later attempt to delete")


def sweep(store: Store, session: str, *, now_ms: Callable[[], int]) -> None:
    """Delete old files of earlier attempts that the record does not name; never raise.

    Only what checkpoints are made of is looked at: logs and ledgers stay. Everything is listed before the
    record is read. So if the record is then still ours, no newer attempt had begun when a listed file was
    written, and none can ever come to need it.
    """
    try:
        old = [found for found in store.list() if found.modified_ms < now_ms() - OLD_AFTER_MS]
        read = read_record(store)
        if read is None or read[0].attempt.session != session:
            return
        unnamed = [found.key for found in old if _is_left_over(found, read[0])]
        if unnamed:
            store.delete(unnamed)
            _log.info("swept %s files that earlier attempts left", len(unnamed))
    except RunError as error:
        _log.warning("what earlier attempts left stays: %s", error)
    except Exception:  # noqa: BLE001  (clean-up never fails a run)
        _log.exception("what earlier attempts left stays")


def _is_left_over(found: Object, record: RunRecord) -> bool:
    named = [*record.checkpoints, *(entry.checkpoint for entry in record.refused)]
    match = _FILE.match(found.key)
    if match:
        return int(match[2]) < record.attempt.number and match[1] not in {
            _token(entry.manifest) for entry in named
        }
    folder, _, name = found.key.partition("/")
    if folder == SEGMENTS:
        return name not in {segment.name for entry in named for segment in entry.segments}
    return folder == "tmp"


def _token(key: str) -> str | None:
    match = _FILE.match(key)
    return match[1] if match else None
