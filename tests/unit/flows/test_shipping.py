from __future__ import annotations

import errno
import io
import os
import random
import shutil
import socket
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flows import ignoring, shipping
from flows.shipping import Changed, pack, read_tree, ship, store_tree
from flows.trees import trees_location
from runtime.checkpoints.memory import MemoryStore
from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from _typeshed import ReadableBuffer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('hi')\n")
    (folder / "pkg" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "pkg" / "run.sh").chmod(0o755)
    return folder


def packed(root: Path) -> bytes:
    output = io.BytesIO()
    pack(read_tree(root), output)
    return output.getvalue()


def kinds(root: Path) -> dict[str, str]:
    return {entry.path: entry.kind for entry in read_tree(root).entries}


def test_the_same_directory_elsewhere_and_later_has_the_same_digest_and_archive(root, tmp_path):
    tree, archive = read_tree(root), packed(root)
    other = tmp_path / "elsewhere"
    (other / "pkg").mkdir(parents=True)
    for path in ("pkg/run.sh", "train.py"):
        (other / path).write_bytes((root / path).read_bytes())
        os.utime(other / path, (1, 1))
    (other / "pkg" / "run.sh").chmod(0o711)  # who may read it is the host's business
    assert read_tree(other).digest == tree.digest
    assert packed(other) == archive


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train.py").write_text("print('ho')\n"),
        lambda root: (root / "train.py").rename(root / "main.py"),
        lambda root: (root / "train.py").chmod(0o755),
        lambda root: (root / "pkg" / "run.sh").chmod(0o644),
        lambda root: (root / "empty").mkdir(),
        lambda root: (root / "link").symlink_to("train.py"),
    ],
    ids=["content", "path", "executable", "not executable", "empty folder", "link"],
)
def test_what_a_run_can_see_changes_the_digest(root, change):
    before = read_tree(root).digest
    change(root)
    assert read_tree(root).digest != before


def test_empty_folders_and_links_inside_are_shipped_and_git_and_sockets_are_not(root, monkeypatch):
    (root / "out" / "deep").mkdir(parents=True)
    (root / "current").symlink_to("pkg")
    (root / "gone").symlink_to("not/there/yet")
    (root / ".git" / "objects").mkdir(parents=True)
    (root / "sub" / ".git").mkdir(parents=True)
    monkeypatch.chdir(root)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        os.mkfifo(root / "pipe")
        assert kinds(root) == {
            "current": "link",
            "gone": "link",
            "out/deep": "folder",
            "pkg/run.sh": "executable",
            "train.py": "file",
        }


def test_an_empty_directory_is_shipped(tmp_path):
    assert read_tree(tmp_path).entries == ()


def test_a_directory_of_which_nothing_is_left_is_refused(root):
    (root / ".gitignore").write_text("*\n")
    with pytest.raises(Rejected, match=r"nothing of .* would be shipped: .* like !train\.py"):
        read_tree(root)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "../other",
            r"the link data leads out of the directory, to \.\./other: ship a copy, or leave it out",
        ),
        ("pkg/up/other", "the link data leads out of the directory"),
        ("/etc/passwd", "the link data leads to /etc/passwd, which another host need not have: make it rela"),
    ],
    ids=["outside", "outside through another", "absolute"],
)
def test_a_link_that_leads_out_is_refused(root, target, said):
    if "up" in target:
        (root / "pkg" / "up").symlink_to("../..")
        (root / ".divignore").write_text("up\n")
    (root / "data").symlink_to(target)
    with pytest.raises(Rejected, match=said):
        read_tree(root)


def test_too_much_is_refused_with_the_largest_files_by_name(root):
    (root / "model.bin").write_bytes(bytes(3 << 20))
    (root / "pkg" / "data.bin").write_bytes(bytes(2 << 20))
    with pytest.raises(Rejected) as refused:
        read_tree(root, max_bytes=1 << 20)
    assert str(refused.value) == (
        f"{root} holds 5 MiB, and at most 1 MiB are shipped: leave out in .divignore what the run does not "
        "need. The largest files are model.bin (3 MiB), pkg/data.bin (2 MiB), train.py (12 bytes), "
        "pkg/run.sh (10 bytes)."
    )


def test_too_many_are_refused_with_the_folders_that_hold_most(root):
    for number in range(5):
        (root / "pkg" / f"{number}.txt").touch()
    with pytest.raises(
        Rejected, match=r"has 7 files, and at most 6 are shipped: .* Most are in pkg \(6\), \. \(1\)\."
    ):
        read_tree(root, max_entries=6)


def test_what_is_left_out_does_not_count(root):
    (root / "model.bin").write_bytes(bytes(3 << 20))
    (root / ".divignore").write_text("*.bin\n")
    assert read_tree(root, max_bytes=1 << 20).size_bytes < 100


def test_a_file_that_cannot_be_read_is_refused_by_name(root, monkeypatch):
    opened = os.open  # root may read everything

    def forbidding(path, *arguments):
        if str(path).endswith("train.py"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", forbidding)
    with pytest.raises(Rejected, match=r"train\.py cannot be read \(Permission denied\)"):
        read_tree(root)


def test_a_name_that_is_no_text_is_refused(root):
    (root / os.fsdecode(b"caf\xe9")).touch()
    with pytest.raises(Rejected, match=r"the name of 'caf\\udce9' is not UTF-8: rename it"):
        read_tree(root)


def test_the_same_directory_is_uploaded_once(root):
    store = MemoryStore()
    tree, uploaded = ship(root, store)
    assert uploaded
    assert {held.key for held in store.list()} == {f"{tree.digest}.json", f"{tree.digest}.tar.gz"}
    assert ship(root, store) == (tree, False)


class Meddling(MemoryStore):
    """Writes to a file between the reading of a directory and its packing, so many times."""

    def __init__(self, path: Path, times: int) -> None:
        super().__init__()
        self._path, self._times = path, times

    def list(self, prefix=""):
        if self._times:
            self._times -= 1
            with self._path.open("a") as file:
                file.write("# more\n")
        return super().list(prefix)


def test_a_file_that_changes_while_it_is_shipped_is_read_again(root):
    store = Meddling(root / "train.py", 2)
    tree, uploaded = ship(root, store)
    assert uploaded
    assert tree == read_tree(root)


def test_a_file_that_never_stops_changing_is_refused_by_name(root):
    store = Meddling(root / "train.py", 3)
    with pytest.raises(Rejected, match=r"train\.py changes while it is shipped: wait until it is written"):
        ship(root, store)
    assert not [held for held in store.list() if held.key.endswith(".tar.gz")]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("x"),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.symlink_to("pkg/run.sh")),
        lambda path: path.chmod(0o755),
    ],
    ids=["shorter", "gone", "a link now", "executable now"],
)
def test_packing_notices_a_file_that_is_no_longer_what_was_read(root, change):
    tree = read_tree(root)
    change(root / "train.py")
    with pytest.raises(Changed, match=r"train\.py"):
        pack(tree, io.BytesIO())


@pytest.mark.parametrize(
    ("prefix", "location"),
    [
        ("s3://bucket", "s3://bucket/.trees"),
        ("s3://bucket/runs/", "s3://bucket/runs/.trees"),
        ("/srv/runs", "/srv/runs/.trees"),
        ("runs", f"{Path.cwd()}/runs/.trees"),
    ],
    ids=["bucket", "prefix", "directory", "relative"],
)
def test_trees_lie_beside_the_runs_locations(prefix, location):
    assert trees_location({"SLUGLINE_LOCATION": prefix}) == location


def test_without_a_location_there_is_nowhere_to_ship_to():
    with pytest.raises(
        Rejected, match=r"SLUGLINE_LOCATION is not set, so there is nowhere to ship to: .*slugline env"
    ):
        trees_location({})


def test_a_host_without_room_to_pack_in_is_told(root, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shipping, "pack", full)
    with pytest.raises(Unavailable, match=r"no packing in .* \(No space left on device\): make room, or set"):
        ship(root, MemoryStore())
    monkeypatch.setattr(tempfile, "tempdir", str(root / "none"))
    with pytest.raises(Unavailable, match=r"no packing in .*/none \(No such file or directory\): make room"):
        ship(root, MemoryStore())


def test_a_store_that_has_the_archive_is_not_asked_to_take_it(root):
    store = MemoryStore()
    tree = read_tree(root)
    assert store_tree(tree, store)
    (root / "train.py").write_text("another")  # would be noticed if it were packed again
    assert not store_tree(tree, store)


def test_packing_notices_a_file_that_gets_shorter_while_it_is_read(root):
    """What was left filled less than a block, of which `tarfile` made an OSError of its own."""
    data = root / "data.bin"
    data.write_bytes(random.Random(0).randbytes(300_000))

    class Shortening(io.BytesIO):
        def write(self, block: ReadableBuffer, /) -> int:
            if self.tell() > 1_000:
                os.truncate(data, 200_001)
            return super().write(block)

    with pytest.raises(Changed, match=r"data\.bin"):
        pack(read_tree(root), Shortening())


def change_everything(root: Path) -> None:
    """A file gets shorter, others become folders, a folder a file, a link one that leads to itself."""
    os.truncate(root / "data.bin", 20_000)
    shutil.rmtree(root / "pkg")
    (root / "pkg").touch()
    for name in (".gitignore", "train.py"):
        (root / name).unlink()
        (root / name).mkdir()
    (root / "link").unlink()
    (root / "link").symlink_to("link")


def test_whatever_changes_at_any_moment_the_directory_is_shipped_whole_or_refused_in_one_line(root):
    """A folder that became a file was an OSError, and a traceback: it is done at line after line."""
    (root / "data.bin").write_bytes(bytes(40_000))
    (root / ".gitignore").write_text("*.pyc\n")
    (root / "link").symlink_to("train.py")
    copy = root.with_name("copy")
    num_lines = shipped_but(lambda: None, root, at=-1)
    assert num_lines > 100
    for at in range(0, num_lines, 13):
        shutil.copytree(root, copy, symlinks=True)
        shipped_but(lambda: change_everything(copy), copy, at=at)
        shutil.rmtree(copy)


def shipped_but(deed: Callable[[], None], root: Path, *, at: int) -> int:
    """Ship, and do a deed at line number `at` of those that touch a disk; return how many are run."""
    lines = 0
    modules = (shipping.__file__, ignoring.__file__)
    functions = {"__init__", "read", "_listed", "_take", "_link", "_patterns", "_entry", "pack"}

    def on_event(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in modules or frame.f_code.co_name not in functions:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                deed()
        return on_event

    store, before, refusal = MemoryStore(), sys.gettrace(), ""
    sys.settrace(on_event)
    try:
        tree, _ = ship(root, store)
    except Rejected as error:
        refusal = str(error)
    finally:
        sys.settrace(before)
    archives = [store.get(held.key)[0] for held in store.list() if held.key.endswith(".tar.gz")]
    if refusal:
        assert (refusal.splitlines(), archives) == ([refusal], [])
        return lines
    with tarfile.open(fileobj=io.BytesIO(*archives)) as packed:
        assert {member.name for member in packed} == {entry.path for entry in tree.entries}
    return lines
