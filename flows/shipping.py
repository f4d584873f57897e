"""Shipping a directory: what of it is taken, packed the same way each time, and stored once."""

from __future__ import annotations

import contextlib
import errno
import gzip
import mmap
import os
import stat
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Self

import msgspec
from blake3 import blake3

from flows.ignoring import DIVIGNORE, Ignoring, ignoring
from flows.trees import MAX_TREE_BYTES, MAX_TREE_ENTRIES, Entry, Kind, digest_of, listing_name, object_name
from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.checkpoints.store import Store

__all__ = ["Tree", "copy_tree", "pack", "read_tree", "ship", "store_tree"]

CHUNK_BYTES = 1 << 20
LEVEL = 3
"""Of compression: source code comes out 5 % larger than with the best one, in a third of the time."""
TRIES = 3
NUM_NAMED = 5
ANOTHER_NOW = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EINVAL,
    errno.ELOOP,
    errno.ENXIO,
    errno.ESTALE,
)
"""What the system says of what is gone, or no file, folder or link any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A directory as it was read: its entries by path, and the digest that names them."""

    root: Path
    entries: tuple[Entry, ...]
    digest: str

    @property
    def size_bytes(self) -> int:
        """What its files hold together."""
        return sum(entry.size_bytes for entry in self.entries)


class Changed(Exception):
    """A file or folder is another one than a moment ago; its text is the path."""


def ship(root: Path, store: Store) -> tuple[Tree, bool]:
    """Store the directory `root` under its digest; return it, and whether it had to be uploaded.

    Raises:
        Rejected: it cannot be shipped as it is (see `read_tree`), or changes again and again meanwhile.
        Unavailable: the store cannot be reached, or there is no room to pack in.
    """
    changed = ""
    for _ in range(TRIES):
        try:
            tree = read_tree(root)
            return tree, store_tree(tree, store)
        except Changed as error:
            changed = str(error)
    raise Rejected(
        f"{changed} changes while it is shipped: wait until it is written, or leave it out in {DIVIGNORE}."
    )


def read_tree(root: Path, *, max_bytes: int = MAX_TREE_BYTES, max_entries: int = MAX_TREE_ENTRIES) -> Tree:
    """Read what is shipped of the directory `root`: all but what `ignoring` leaves out, `.git`, and sockets.

    Raises:
        Rejected: it is too large, a link leads out of it, a file cannot be read, a name is not UTF-8.
        Changed: a file was written to while it was read.
    """
    found = sorted(_Walk(root).found, key=lambda item: item.path)
    _check_size(root, found, max_bytes=max_bytes, max_entries=max_entries)
    entries = tuple(_entry(root, item) for item in found)
    return Tree(root=root, entries=entries, digest=digest_of(entries))


def pack(tree: Tree, output: BinaryIO) -> None:
    """Write the directory as a `.tar.gz`, of which every byte follows from the tree.

    Raises:
        Changed: a file is no longer what was read.
    """
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=output, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in tree.entries:
            member = _member(entry)
            if not member.isreg():
                archive.addfile(member)
                continue
            with _Read(tree.root, entry.path) as file:
                if (file.kind, file.size_bytes) != (entry.kind, entry.size_bytes):
                    raise Changed(entry.path)
                archive.addfile(member, file)
                if file.digest() != entry.content:
                    raise Changed(entry.path)


def store_tree(tree: Tree, store: Store) -> bool:
    """Store a directory under its digest; False: it is there already.

    Raises:
        Changed: a file is no longer what was read.
        Unavailable: the store cannot be reached, or there is no room to pack in.
    """
    key = object_name(tree.digest)
    if any(held.key == key for held in store.list(key)):
        return False
    with _packed(tree) as file:
        store.put(listing_name(tree.digest), msgspec.json.encode(tree.entries))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            store.put(key, view)  # last: what it names is whole
    return True


@contextlib.contextmanager
def _packed(tree: Tree) -> Iterator[BinaryIO]:
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile())
            pack(tree, file)
            file.flush()
        except OSError as error:  # of the files that are read, everything is told otherwise
            folder = tempfile.tempdir or "any directory"  # unset: none was found
            raise Unavailable(
                f"there is no packing in {folder} ({error.strerror}): make room, or set TMPDIR."
            ) from error
        yield file


def copy_tree(digest: str, source: Store, target: Store) -> bool:
    """Store in `target` the directory that `source` holds under its digest; False: it is there already.

    Raises:
        Unavailable: a store cannot be reached.
    """
    key = object_name(digest)
    if any(held.key == key for held in target.list(key)):
        return False
    target.put(listing_name(digest), source.get(listing_name(digest))[0])
    (size_bytes,) = (held.size_bytes for held in source.list(key) if held.key == key)
    with mmap.mmap(-1, size_bytes) as data, memoryview(data) as view:
        source.read_into(key, view)
        target.put(key, view)  # last: what it names is whole
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    path: str
    mode: int
    size_bytes: int = 0


class _Walk:
    """Everything in a directory that is shipped, without what it holds."""

    def __init__(self, root: Path) -> None:
        self.found: list[_Found] = []
        self._left_out = 0
        if not root.is_dir():
            raise Rejected(f"there is no directory {root}: run this in the one to ship.")
        self._walk(root, "", ignoring(root))
        if self._left_out and not self.found:
            raise Rejected(
                f"nothing of {root} would be shipped: .gitignore or {DIVIGNORE} leave out everything in it. "
                f"Bring back what the run needs with a line like !train.py in {DIVIGNORE}."
            )

    def _walk(self, folder: Path, prefix: str, ignored: Ignoring) -> None:
        with _as_ours(folder):
            ignored = ignored.reading(folder)
        empty = True
        for item in _listed(folder):
            empty = False
            is_folder = item.is_dir(follow_symlinks=False)
            if item.name == ".git" or ignored.leaves_out(item.name, folder=is_folder):
                self._left_out += 1
                continue
            path = prefix + item.name
            _check_name(path)
            if is_folder:
                self._walk(Path(item.path), f"{path}/", ignored.inside(item.name))
            else:
                self._take(item, path)
        if empty and prefix:
            self.found.append(_Found(path=prefix.rstrip("/"), mode=stat.S_IFDIR))

    def _take(self, item: os.DirEntry[str], path: str) -> None:
        with _as_ours(path):
            about = item.stat(follow_symlinks=False)
        if stat.S_ISREG(about.st_mode):
            self.found.append(_Found(path=path, mode=about.st_mode, size_bytes=about.st_size))
        elif stat.S_ISLNK(about.st_mode):
            self.found.append(_Found(path=path, mode=about.st_mode))


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with _as_ours(folder), os.scandir(folder) as items:
        return list(items)


@contextlib.contextmanager
def _as_ours(path: Path | str) -> Iterator[None]:
    """What the system says of a file or folder, in our words: it is another one now, or cannot be read."""
    try:
        yield
    except OSError as error:
        if error.errno in ANOTHER_NOW:
            raise Changed(path) from None
        raise Rejected(
            f"{path} cannot be read ({error.strerror}): correct its mode, or leave it out in {DIVIGNORE}."
        ) from error


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Rejected(
            f"the name of {path!r} is not UTF-8: rename it, or leave it out in {DIVIGNORE}."
        ) from None


def _check_size(root: Path, found: list[_Found], *, max_bytes: int, max_entries: int) -> None:
    size_bytes = sum(item.size_bytes for item in found)
    if size_bytes > max_bytes:
        largest = sorted(found, key=lambda item: -item.size_bytes)[:NUM_NAMED]
        named = ", ".join(f"{item.path} ({_size(item.size_bytes)})" for item in largest)
        raise Rejected(
            f"{root} holds {_size(size_bytes)}, and at most {_size(max_bytes)} are shipped: leave out in "
            f"{DIVIGNORE} what the run does not need. The largest files are {named}."
        )
    if len(found) > max_entries:
        raise Rejected(
            f"{root} has {len(found):,} files, and at most {max_entries:,} are shipped: leave out in "
            f"{DIVIGNORE} what the run does not need. Most are in {_fullest(found)}."
        )


def _fullest(found: list[_Found]) -> str:
    counts: dict[str, int] = {}
    for item in found:
        top = PurePosixPath(item.path).parts[0] if "/" in item.path else "."
        counts[top] = counts.get(top, 0) + 1
    fullest = sorted(counts, key=lambda top: -counts[top])[:NUM_NAMED]
    return ", ".join(f"{top} ({counts[top]:,})" for top in fullest)


def _size(size_bytes: int) -> str:
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= one:
            return f"{size_bytes / one:.4g} {unit}"
    return f"{size_bytes} bytes"


def _entry(root: Path, item: _Found) -> Entry:
    if stat.S_ISDIR(item.mode):
        return Entry(path=item.path, kind="folder")
    if stat.S_ISLNK(item.mode):
        return Entry(path=item.path, kind="link", content=_link(root, item.path))
    with _Read(root, item.path) as file:
        while file.read():
            pass
        return Entry(path=item.path, kind=file.kind, size_bytes=file.size_bytes, content=file.digest())


def _link(root: Path, path: str) -> str:
    with _as_ours(path):
        target = str((root / path).readlink())
    _check_name(target)
    if target.startswith("/"):
        raise Rejected(
            f"the link {path} leads to {target}, which another host need not have: make it relative, or "
            f"leave it out in {DIVIGNORE}."
        )
    inside = Path(os.path.realpath(root))
    if not Path(os.path.realpath(root / path)).is_relative_to(inside):
        raise Rejected(
            f"the link {path} leads out of the directory, to {target}: ship a copy, or leave it out in "
            f"{DIVIGNORE}."
        )
    return target


class _Read:
    """A file read once, from its beginning to the size it had; that it changes meanwhile is noticed."""

    def __init__(self, root: Path, path: str) -> None:
        self._path = path
        with _as_ours(path):
            # Never a link that took its place; a pipe would be waited for.
            descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = os.fstat(descriptor)
        if not stat.S_ISREG(self._before.st_mode):
            os.close(descriptor)
            raise Changed(path)
        self._file = os.fdopen(descriptor, "rb")
        self.kind: Kind = "executable" if self._before.st_mode & stat.S_IXUSR else "file"
        self.size_bytes = self._before.st_size
        self._left = self.size_bytes
        self._hash = blake3()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = CHUNK_BYTES, /) -> bytes:
        """Return the next `size` bytes, or all that are left; nothing at the end."""
        if not self._left:
            return b""
        size = min(size, self._left)
        with _as_ours(self._path):
            data = self._file.read(size)
        if len(data) < size:
            raise Changed(self._path)  # it got shorter
        self._left -= len(data)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """Return the BLAKE3 of all of it.

        Raises:
            Changed: it is another file than when it was opened.
        """
        now = os.fstat(self._file.fileno())
        before = (self._before.st_size, self._before.st_mtime_ns, self._before.st_mode)
        if (now.st_size, now.st_mtime_ns, now.st_mode) != before:
            raise Changed(self._path)
        return str(self._hash.hexdigest())


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.path)
    match entry.kind:
        case "folder":
            member.type, member.mode = tarfile.DIRTYPE, 0o755
        case "link":
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.content, 0o777
        case kind:
            member.size, member.mode = entry.size_bytes, 0o755 if kind == "executable" else 0o644
    return member
