"""What an object store must be able to do, and the errors with which it says that it could not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from runtime.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Conflict", "Missing", "Object", "Store", "Truncated", "require_conditional_writes"]


class Missing(LookupError):
    """No object of that key."""


class Conflict(Exception):
    """The object is not what the caller said it is: somebody else wrote first."""


class Truncated(Exception):
    """The stored object is shorter or longer than its reader expects: it is damaged, not out of reach."""


@dataclass(frozen=True, slots=True)
class Object:
    """One object of a listing; `modified_ms` is by the store's own clock."""

    key: str
    size_bytes: int
    modified_ms: int


class Store(Protocol):
    """The few operations that checkpoints need, so that a folder, S3 and a test's memory are the same thing.

    Keys are relative to the location, with `/` between parts. Every method blocks, may be called from any
    thread, and raises `Unavailable` when the store cannot be reached or refuses access; its text names the
    store and says what to do.
    """

    @property
    def url(self) -> str:
        """The location as people write it: `/path` or `s3://bucket/prefix`."""
        ...

    def get(self, key: str) -> tuple[bytes, str]:
        """Return a small object and its etag.

        Raises:
            Missing: there is none.
        """
        ...

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Store an object whole or not at all; durable when this returns. Replaces an older one."""
        ...

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        """Replace the object whose etag is `etag`, or create it where `etag` is None; return the new etag.

        Raises:
            Conflict: the object is another one by now, exists already, or is gone. After a lost reply
                the object may be this very `data`: read it before giving up.
        """
        ...

    def read_into(self, key: str, buffer: memoryview) -> None:
        """Fill `buffer` with the whole object, without a second copy of it in memory.

        Raises:
            Missing: there is none.
            Truncated: it does not have the buffer's size.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[Object]:
        """Every object whose key starts with `prefix`, in no particular order."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects; one that is not there is no error."""
        ...


def require_conditional_writes(store: Store, probe: str) -> None:
    """Refuse a store that overwrites when told not to: two attempts could then both publish.

    Writes and deletes the object `probe`.

    Raises:
        Unavailable: the store ignores conditions, or cannot be reached.
    """
    kept = _refuses(store, probe, None) and _refuses(store, probe, "not-the-etag")
    with suppress(Unavailable):  # one who may not delete keeps everything; a run can live with that
        store.delete([probe])
    if not kept:
        raise Unavailable(
            f"{store.url}: the store ignores conditional writes (If-Match, If-None-Match), so two attempts "
            "could overwrite each other; use an S3 server that keeps them, or a local directory"
        )


def _refuses(store: Store, probe: str, etag: str | None) -> bool:
    store.put(probe, b"{}")
    try:
        store.put_if(probe, b'{"overwritten":true}', etag=etag)
    except Conflict:
        return True
    return False
