"""Reading a checkpoint back: in parallel, straight into its tensors' memory, every digest checked."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from blake3 import blake3

from runtime.checkpoints.buffer import HostBuffer
from runtime.checkpoints.format import SHARD_ALIGNMENT, Damaged, Manifest, decode_manifest, read_tensors
from runtime.checkpoints.parallel import each
from runtime.checkpoints.store import Missing, Store, Truncated
from runtime.checkpoints.sweep import SEGMENTS
from runtime.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from runtime.checkpoints.record import CheckpointEntry, SegmentEntry

__all__ = ["Checkpoint", "read_checkpoint", "read_segment"]

WORKERS = 4
TRIES = 3
GIVE_UP_AFTER_S = 20.0  # no new try after this: a start must not wait for a store that does not answer

_log = logging.getLogger(__name__)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose every byte was verified. `tensors` are on the CPU and nobody else's.

    They are views of one buffer as large as the run's state: one that is kept keeps all of it.
    """

    step: int
    attempt: int
    path: str
    entry: CheckpointEntry
    tensors: dict[str, torch.Tensor]
    data: Mapping[str, Any]


def read_checkpoint(store: Store, entry: CheckpointEntry) -> Checkpoint:
    """Read and verify all of a checkpoint.

    Raises:
        Damaged: a file is missing, of another size, or not what its digest says, also when read again.
        Unavailable: the store cannot be reached.
    """
    manifest = read_manifest(store, entry)
    folder = entry.manifest.rpartition("/")[0]
    starts, end = [], 0
    for file in manifest.files:
        starts.append(end)
        end += -(-file.size_bytes // SHARD_ALIGNMENT) * SHARD_ALIGNMENT
    buffer = HostBuffer(end)

    def read(index: int) -> torch.Tensor:
        file, start = manifest.files[index], starts[index]
        buffer.populate(start, file.size_bytes)
        view = buffer.view[start : start + file.size_bytes]
        _read_verified(store, f"{folder}/{file.name}", view, file.blake3)
        return buffer.tensor[start : start + file.size_bytes]

    shards = each(read, range(len(manifest.files)), workers=WORKERS, name="checkpoint-read")
    return Checkpoint(
        step=entry.step,
        attempt=entry.attempt,
        path=f"{store.url}/{folder}",
        entry=entry,
        tensors=read_tensors(shards, manifest.whole),
        data=manifest.data,
    )


def read_manifest(store: Store, entry: CheckpointEntry) -> Manifest:
    """Read and verify a manifest; raises like `read_checkpoint`."""

    def read() -> bytes:
        data, _ = store.get(entry.manifest)
        _verify(entry.manifest, data, entry.manifest_blake3)
        return data

    return decode_manifest(_persistently(entry.manifest, read))


def read_segment(store: Store, segment: SegmentEntry) -> bytes:
    """Read and verify the events of a segment; raises like `read_checkpoint`."""
    buffer = bytearray(segment.size_bytes)
    _read_verified(store, f"{SEGMENTS}/{segment.name}", memoryview(buffer), segment.blake3)
    return bytes(buffer)


def _read_verified(store: Store, key: str, view: memoryview, digest: str) -> None:
    def read() -> None:
        store.read_into(key, view)
        _verify(key, view, digest)

    _persistently(key, read)


def _verify(key: str, data: bytes | memoryview, digest: str) -> None:
    found = blake3(data).hexdigest()
    if found != digest:
        raise Damaged(f"{key} is damaged: its BLAKE3 is {found[:12]}, expected {digest[:12]}")


def _persistently(key: str, read: Callable[[], Value]) -> Value:
    """Read again what did not verify: the fault may be the wire's. What is short or missing stays so."""
    started_s = time.monotonic()
    for tries_left in reversed(range(TRIES)):
        try:
            return read()
        except Missing as error:
            raise Damaged(f"{key} is missing") from error
        except Truncated as error:
            raise Damaged(f"{error}") from error
        except (Damaged, Unavailable) as error:
            if not tries_left or time.monotonic() - started_s > GIVE_UP_AFTER_S:
                raise
            _log.warning("reading again: %s", error)
    raise AssertionError("unreachable")
