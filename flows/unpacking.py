"""Unpacking a shipped directory on a worker: verified by its digest, whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import msgspec
from blake3 import blake3

from flows.trees import MAX_TREE_BYTES, MAX_TREE_ENTRIES, Entry, digest_of, listing_name, object_name
from runtime.checkpoints.store import Missing, Truncated
from runtime.errors import Rejected, RunError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.checkpoints.store import Store

__all__ = ["fetch_tree", "read_listing", "unpacked"]

HALF = ".half-"
"""How the name begins of a directory that is being unpacked, or was when its process died."""
CHUNK_BYTES = 1 << 20


class _DamagedError(Exception):
    """What is stored is not what was shipped; its text says why."""


def unpacked(trees: Store, digest: str, folder: Path) -> Path:
    """Return where the shipped directory `digest` is unpacked in a run's folder, done if need be.

    Raises:
        Rejected, Unavailable: as `fetch_tree`.
    """
    directory = folder / f"tree-{digest[:16]}"
    fetch_tree(trees, digest, directory)
    return directory


def read_listing(store: Store, digest: str) -> tuple[Entry, ...]:
    """Return what is in the shipped directory `digest`, by path.

    Raises:
        Rejected: it is not in the store, or damaged there.
        Unavailable: the store cannot be reached, or is another host's directory.
    """
    try:
        entries = msgspec.json.decode(store.get(listing_name(digest))[0], type=tuple[Entry, ...])
    except Missing:
        raise _not_there(store, digest) from None
    except msgspec.MsgspecError as error:
        raise _damaged(store, listing_name(digest), error) from error
    if digest_of(entries) != digest:
        raise _damaged(store, listing_name(digest), "it lists another directory")
    return entries


def fetch_tree(store: Store, digest: str, into: Path) -> None:
    """Unpack the shipped directory `digest` as `into`.

    `into` appears in one step, whole. One that is there already stays as it is, whatever happened in it
    since. Several processes may do the same at once: one of them makes it.

    Raises:
        Rejected: it is not in the store, or damaged there.
        Unavailable: the store cannot be reached or is another host's directory, or this host has no room.
    """
    if into.is_dir():
        return
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        _sweep(into.parent)
        with _half(into.parent) as half, _archive(store, digest, half) as archive:
            _unpack(archive, half / "tree", digest)
            _appear(half / "tree", into)
    except (_DamagedError, tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise _damaged(store, object_name(digest), error) from error
    except OSError as error:
        raise Unavailable(
            f"the shipped directory cannot be unpacked as {into} ({error.strerror or error}): "
            "free some space, or set SLUGLINE_WORK_DIR."
        ) from error


def _appear(whole: Path, into: Path) -> None:
    try:
        whole.rename(into)
    except OSError:
        if not into.is_dir():  # another process was first
            raise


@contextlib.contextmanager
def _half(parent: Path) -> Iterator[Path]:
    """A folder of our own, locked for as long as its process lives, and deleted at the end."""
    folder, descriptor = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=HALF, dir=parent))
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # swept by another process, for which nobody held it yet
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, descriptor
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Delete what processes that died while they unpacked have left: the kernel has freed their locks."""
    for folder in parent.glob(f"{HALF}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # gone meanwhile
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@contextlib.contextmanager
def _archive(store: Store, digest: str, half: Path) -> Iterator[tarfile.TarFile]:
    key = object_name(digest)
    size_bytes = next((held.size_bytes for held in store.list(key) if held.key == key), None)
    if size_bytes is None:
        raise _not_there(store, digest)
    if not size_bytes:
        raise _DamagedError("it is empty")
    with (half / "archive").open("w+b") as file:
        file.truncate(size_bytes)
        try:
            with mmap.mmap(file.fileno(), size_bytes) as data, memoryview(data) as view:
                store.read_into(key, view)
        except (Missing, Truncated) as error:
            raise _DamagedError(f"it changed while it was read: {error}") from error
        with tarfile.open(fileobj=file, mode="r|gz") as archive:
            yield archive


def _unpack(archive: tarfile.TarFile, root: Path, digest: str) -> None:
    """Write what the archive holds as `root`, which is new; links last, so that no file goes through one."""
    root.mkdir()
    entries: list[Entry] = []
    left_bytes = MAX_TREE_BYTES
    for member in archive:
        path = _checked_path(member.name)
        if len(entries) == MAX_TREE_ENTRIES or member.size > left_bytes:
            raise _DamagedError("it holds more than may be shipped")
        if member.issym():
            entries.append(Entry(path=path, kind="link", content=member.linkname))
        elif member.isdir():
            (root / path).mkdir(parents=True, exist_ok=True)
            entries.append(Entry(path=path, kind="folder"))
        elif member.isreg():
            file = archive.extractfile(member)
            assert file is not None
            entries.append(_written(file, root / path, member))
            left_bytes -= member.size
        else:
            raise _DamagedError(f"{path} is no file, link or folder")
    if digest_of(entries) != digest:
        raise _DamagedError("it holds another directory")
    links = [entry for entry in entries if entry.kind == "link"]
    for entry in links:
        _link(root, entry)
    for entry in links:  # again: where one leads may be another that came later
        _check_link(root, entry)


def _written(file: IO[bytes], path: Path, member: tarfile.TarInfo) -> Entry:
    executable = bool(member.mode & 0o100)
    path.parent.mkdir(parents=True, exist_ok=True)
    hashed = blake3()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755 if executable else 0o644)
    with os.fdopen(descriptor, "wb") as output:
        while chunk := file.read(CHUNK_BYTES):
            hashed.update(chunk)
            output.write(chunk)
    return Entry(
        path=_checked_path(member.name),
        kind="executable" if executable else "file",
        size_bytes=member.size,
        content=str(hashed.hexdigest()),
    )


def _link(root: Path, entry: Entry) -> None:
    path = root / entry.path
    if not _is_inside(path.parent, root):
        raise _DamagedError(f"{entry.path} is behind a link that leads out of the directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(entry.content)
    _check_link(root, entry)


def _check_link(root: Path, entry: Entry) -> None:
    if Path(entry.content).is_absolute() or not _is_inside(root / entry.path, root):
        raise _DamagedError(f"the link {entry.path} leads out of the directory")


def _is_inside(path: Path, root: Path) -> bool:
    # realpath: a link that leads to itself is no error.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def _checked_path(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != name.rstrip("/"):
        raise _DamagedError(f"it holds the path {name!r}")
    return str(path)


def _not_there(store: Store, digest: str) -> RunError:
    what = f"the shipped directory {digest[:12]} is not in {store.url}"
    if store.url.startswith("s3://"):
        return Rejected(f"{what}: ship it again with `div run` or `slugline train`.")
    return Unavailable(f"{what} on this host: only the host on which it was shipped has it.")


def _damaged(store: Store, key: str, error: Exception | str) -> Rejected:
    return Rejected(
        f"{store.url}/{key} is damaged ({error}): delete it, and ship again with `div run` or "
        "`slugline train`."
    )
