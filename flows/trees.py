"""A shipped directory by its content: what is in it, the digest that names it, and where it is stored."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from blake3 import blake3

from flows.parameters import TREES
from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "MAX_TREE_BYTES",
    "MAX_TREE_ENTRIES",
    "Entry",
    "Kind",
    "digest_of",
    "listed_files",
    "listing_name",
    "object_name",
    "trees_location",
]

MAX_TREE_BYTES = 256 << 20
"""What the files of a directory may hold together."""

MAX_TREE_ENTRIES = 20_000
"""How many files, links and empty folders a directory may have."""

Kind = Literal["file", "executable", "link", "folder"]
FORMAT = b"slugline tree 1\0"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Entry:
    """One thing in a directory. `path` is relative, with `/` between its parts.

    `content` is the BLAKE3 of a file's bytes, in hex, or where a link leads. Folders are entries only where
    they are empty.
    """

    path: str
    kind: Kind
    size_bytes: int = 0
    content: str = ""


def digest_of(entries: Iterable[Entry]) -> str:
    """Return the name of the directory of these entries: 64 hex digits over path, mode and content."""
    digest = blake3(FORMAT)
    for entry in sorted(entries):
        for part in (entry.kind, entry.path, str(entry.size_bytes), entry.content):
            digest.update(part.encode() + b"\0")
    return str(digest.hexdigest())


def listed_files(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return the files among the entries, as a run's record lists what was shipped."""
    return [
        {"path": entry.path, "size_bytes": entry.size_bytes, "blake3": entry.content}
        for entry in entries
        if entry.kind in ("file", "executable")
    ]


def object_name(digest: str) -> str:
    """Return the key under which a directory is stored."""
    return f"{digest}.tar.gz"


def listing_name(digest: str) -> str:
    """Return the key under which is stored what is in a directory."""
    return f"{digest}.json"


def trees_location(environment: Mapping[str, str]) -> str:
    """Return where directories are stored: beside the runs' own locations.

    Raises:
        Rejected: `SLUGLINE_LOCATION` is not set.
    """
    prefix = environment.get("SLUGLINE_LOCATION")
    if not prefix:
        raise Rejected(
            "SLUGLINE_LOCATION is not set, so there is nowhere to ship to: set it to s3://bucket/prefix, or "
            'use the local stack with `eval "$(slugline env)"`.'
        )
    if "://" not in prefix:
        prefix = os.path.abspath(os.path.expanduser(prefix))  # noqa: PTH100, PTH111  (links stay as they are)
    return f"{prefix.rstrip('/')}/{TREES}"
