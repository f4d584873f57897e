"""The one moment in which training stands still for a checkpoint: a copy of its tensors into host memory."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import torch

from runtime.checkpoints.buffer import HostBuffer
from runtime.checkpoints.format import SHARD_BYTES, Layout, plan, signature

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runtime.checkpoints.format import Piece

__all__ = ["Snapshots"]

_log = logging.getLogger(__name__)


class Snapshots:
    """Takes one snapshot at a time into a buffer that is made ready in the background.

    `expected_bytes` is the size of all tensors together; a snapshot that turns out larger gets a new
    buffer, and pays for its first touch once. `pin` makes copies off a GPU fast.
    """

    def __init__(self, *, expected_bytes: int, pin: bool = False, shard_bytes: int = SHARD_BYTES) -> None:
        self._shard_bytes = shard_bytes
        self._pin = pin
        self._layout: Layout | None = None
        self._targets: list[torch.Tensor] = []
        self._closed = False
        room_for_headers = (expected_bytes >> 6) + (1 << 20)
        self._make_ready(expected_bytes + room_for_headers)

    def take(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Layout, float]:
        """Copy every tensor; return where each went, and the `time.perf_counter` of the first copy.

        Whatever training changes later, on the device or on the CPU, the copy keeps.

        Raises:
            ValueError: a tensor that no checkpoint can keep.
        """
        if self._layout is None or self._layout.signature != signature(tensors):
            self._lay_out(tensors)
        assert self._layout is not None
        flat: dict[str, torch.Tensor] = {}
        pieces = (piece for shard in self._layout.shards for piece in shard.pieces)
        with torch.no_grad():
            sources = [_source(tensors[piece.tensor].detach(), piece, flat) for piece in pieces]
            started_s = time.perf_counter()
            if sources:
                # One call for all: between two, the other threads would take the interpreter's lock in turn.
                torch._foreach_copy_(self._targets, sources, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return self._layout, started_s

    def view(self, start: int, size_bytes: int) -> memoryview:
        """Bytes of the snapshot; they stay as they are until the next `take`."""
        return self._buffer.view[start : start + size_bytes]

    def close(self) -> None:
        """Let the memory go."""
        self._closed = True
        self._ready.join()
        self._targets = []
        self._buffer.close()

    def _make_ready(self, size_bytes: int) -> None:
        self._buffer = HostBuffer(size_bytes, pin=self._pin, forked=False)
        self._ready = threading.Thread(
            target=self._buffer.touch, args=(lambda: self._closed,), name="checkpoint-buffer", daemon=True
        )
        self._ready.start()

    def _lay_out(self, tensors: Mapping[str, torch.Tensor]) -> None:
        layout = plan(tensors, shard_bytes=self._shard_bytes)
        self._ready.join()
        if layout.size_bytes > self._buffer.size_bytes:
            _log.info(
                "a checkpoint takes %s bytes, %s were made ready", layout.size_bytes, self._buffer.size_bytes
            )
            self._targets = []
            self._buffer.close()
            self._make_ready(layout.size_bytes)
            self._ready.join()
        self._targets = []
        for shard in layout.shards:
            self.view(shard.start, len(shard.header))[:] = shard.header
            self._targets += _views(self._buffer.tensor, shard.start + len(shard.header), shard.pieces)
        self._layout = layout


def _views(buffer: torch.Tensor, start: int, pieces: Sequence[Piece]) -> list[torch.Tensor]:
    """Each piece's place in the buffer, in its own type and shape."""
    views = []
    for piece in pieces:
        flat = buffer[start : start + piece.size_bytes].view(piece.dtype)
        views.append(flat if piece.shape is None else flat.view(piece.shape))
        start += piece.size_bytes
    return views


def _source(tensor: torch.Tensor, piece: Piece, flat: dict[str, torch.Tensor]) -> torch.Tensor:
    """What `piece` copies from. A tensor in pieces is flattened once; where it is contiguous, as a view."""
    if piece.shape is not None:
        return tensor
    if piece.tensor not in flat:
        whole = tensor.resolve_conj().resolve_neg().reshape(-1)
        flat[piece.tensor] = whole.view(torch.uint8) if piece.raw else whole
    return flat[piece.tensor][piece.first : piece.first + piece.count]
