"""`Cursor`: how far a run's telemetry file is read, in a form that outlives whoever reads it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

__all__ = ["HEAD_BYTES", "HEAD_SIZES", "MAX_PAST", "NEAR_BYTES", "Cursor", "Place", "digest", "heads_of"]

HEAD_SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024)
HEAD_BYTES = HEAD_SIZES[-1]
NEAR_BYTES = 64
MAX_PAST = 16
"""How many files that were read to their end are remembered."""

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in a file, and what tells whether it still is that file.

    `device` and `inode` alone do not: an inode is used again at once, on another host it is somebody else's,
    and a file that is cut keeps its own. So `heads` holds digests of the file's first 16 to 1,024 bytes, as
    far as `offset` reaches, and `near` that of the (at most 64) bytes before `offset`. `torn` says that the
    line before `offset` was taken without its line feed, which may still come; `back` is where it began, with
    its own `near`, as it may be cut off yet.
    """

    device: int
    inode: int
    offset: int
    heads: tuple[tuple[int, str], ...] = ()
    near: str = ""
    torn: bool = False
    back: tuple[int, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the place as plain data."""
        data: dict[str, Any] = {"device": self.device, "inode": self.inode, "offset": self.offset}
        data |= {"heads": [list(head) for head in self.heads], "near": self.near}
        if self.torn:
            data["torn"] = True
        if self.back is not None:
            data["back"] = list(self.back)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Place:
        """Return the place that `to_json` wrote. Raises `ValueError` for anything else."""
        try:
            return cls(
                device=int(data["device"]),
                inode=int(data["inode"]),
                offset=int(data["offset"]),
                heads=tuple((int(size), str(value)) for size, value in data["heads"]),
                near=str(data["near"]),
                torn=data.get("torn") is True,
                back=(int(data["back"][0]), str(data["back"][1])) if "back" in data else None,
            )
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"no place in a file: {data!r:.200}") from error


@dataclass(frozen=True, slots=True)
class Cursor:
    """The files that are being read, the one at the path last, and those that were read to their end.

    `past` holds the newest of these: a run that comes back to a host finds its file there again.
    """

    files: tuple[Place, ...] = ()
    past: tuple[Place, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the cursor as plain data, at most some 10 KiB of JSON."""
        return {
            "version": _VERSION,
            "files": [place.to_json() for place in self.files],
            "past": [place.to_json() for place in self.past],
        }

    @classmethod
    def from_json(cls, data: Any) -> Cursor:
        """Return the cursor that `to_json` wrote; `None` is that of a run of which nothing was read.

        Raises:
            ValueError: it is something else, or of a later version.
        """
        if data is None:
            return cls()
        if not isinstance(data, dict) or data.get("version") != _VERSION:
            raise ValueError(f"no telemetry cursor of version {_VERSION}: {data!r:.200}")
        try:
            return cls(
                tuple(Place.from_json(place) for place in data["files"]),
                tuple(Place.from_json(place) for place in data["past"]),
            )
        except (LookupError, TypeError) as error:
            raise ValueError(f"no telemetry cursor: {data!r:.200}") from error


def digest(data: bytes) -> str:
    """Return what tells `data` from other bytes, in 8 hex digits. Guesses could be tried against several."""
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def heads_of(head: bytes, offset: int) -> tuple[tuple[int, str], ...]:
    """Return the digests of the beginnings of `head` that end before `offset`."""
    size = min(offset, len(head))
    return tuple((num_bytes, digest(head[:num_bytes])) for num_bytes in HEAD_SIZES if num_bytes <= size)
