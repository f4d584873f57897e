"""A run's telemetry file, kept at its location: what Metrics did not take can still be read there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

from flows.parameters import file_name
from runtime.telemetry.followed import open_file
from runtime.telemetry.masking import Masker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from runtime.checkpoints.store import Store

__all__ = ["PREFIX", "keep_telemetry"]

PREFIX = "telemetry/"
PART_BYTES = 16 << 20
READ_BYTES = 1 << 20


def keep_telemetry(store: Store, path: Path, *, host: str, secrets: Mapping[str, str]) -> None:
    """Store the file at `path`, masked, in parts of whole 16 MiB: `telemetry/<host>/0001.jsonl` and so on.

    Every host on which the run was has a file of its own. One that is not there, or empty, is not stored.

    Raises:
        Unavailable: the location cannot be reached.
        OSError: the file cannot be read.
    """
    descriptor = open_file(path)
    if descriptor is None:  # or it is a pipe, which would be waited for
        return
    with os.fdopen(descriptor, "rb") as file:
        for number, part in enumerate(_parts(file, Masker(secrets)), start=1):
            store.put(f"{PREFIX}{file_name(host)}/{number:04d}.jsonl", part)


def _parts(file: BinaryIO, masker: Masker) -> Iterator[bytes]:
    part = bytearray()
    while block := file.read(READ_BYTES):
        part += masker.feed(block)
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part.clear()
    part += masker.flush()
    if part:
        yield bytes(part)
