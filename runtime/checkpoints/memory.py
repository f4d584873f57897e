"""A store in this process's memory: for tests, and for trying a file without a location."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from blake3 import blake3

from runtime.checkpoints.store import Conflict, Missing, Object, Truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["MemoryStore"]


class MemoryStore:
    """A `Store` that lives as long as this object."""

    def __init__(self, url: str = "memory:", *, clock_s: Callable[[], float] = time.time) -> None:
        self.url = url
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}

    def get(self, key: str) -> tuple[bytes, str]:
        """See `Store.get`."""
        data = self._read(key)
        return data, blake3(data).hexdigest()

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """See `Store.put`."""
        whole = bytes(data)
        with self._lock:
            self._objects[key] = (whole, int(self._clock_s() * 1000))

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        """See `Store.put_if`."""
        with self._lock:
            held = self._objects.get(key)
            if (None if held is None else blake3(held[0]).hexdigest()) != etag:
                raise Conflict(f"{self.url}/{key} was written by somebody else")
            self._objects[key] = (bytes(data), int(self._clock_s() * 1000))
        return blake3(data).hexdigest()

    def read_into(self, key: str, buffer: memoryview) -> None:
        """See `Store.read_into`."""
        data = self._read(key)
        if len(data) != len(buffer):
            raise Truncated(f"{key} holds {len(data)} bytes, expected {len(buffer)}")
        buffer[:] = data

    def list(self, prefix: str = "") -> Iterator[Object]:
        """See `Store.list`."""
        with self._lock:
            held = list(self._objects.items())
        for key, (data, modified_ms) in held:
            if key.startswith(prefix):
                yield Object(key, len(data), modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Store.delete`."""
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def _read(self, key: str) -> bytes:
        with self._lock:
            try:
                return self._objects[key][0]
            except KeyError:
                raise Missing(f"{self.url}/{key}") from None
