import fcntl
import gzip
import io
import os
import tarfile
import threading
from pathlib import Path

import pytest

from flows.shipping import read_tree, ship
from flows.trees import Entry, digest_of, object_name
from flows.unpacking import fetch_tree, read_listing
from runtime.checkpoints.local import LocalStore
from runtime.checkpoints.memory import MemoryStore
from runtime.errors import Rejected, Unavailable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg" / "nothing").mkdir(parents=True)
    (folder / "train.py").write_text("print('hi')\n")
    (folder / "pkg" / "ü" / "deep").mkdir(parents=True)
    (folder / "pkg" / "ü" / "deep" / ("n" * 120 + ".txt")).write_bytes(os.urandom(3000))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "zero").touch()
    (folder / "a-link").symlink_to("pkg/ü")
    (folder / "self").symlink_to("self")
    return folder


def stored(data: bytes, digest: str = "a" * 64) -> MemoryStore:
    store = MemoryStore("s3://bucket/.trees")
    store.put(object_name(digest), data)
    return store


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return output.getvalue()


def member(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", data: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, data


def is_alone(folder: Path) -> bool:
    return not list(folder.glob(".half-*"))


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_what_was_shipped_is_unpacked(root, tmp_path, kind):
    store = MemoryStore() if kind == "memory" else LocalStore(tmp_path / "store")
    tree, _ = ship(root, store)
    into = tmp_path / "work" / "attempt" / "tree"
    fetch_tree(store, tree.digest, into)
    assert read_tree(into).entries == tree.entries == read_listing(store, tree.digest)
    assert (into / "pkg" / "nothing").is_dir()
    assert is_alone(into.parent)


def test_a_directory_that_is_there_stays_as_it_is(root, tmp_path):
    store = MemoryStore()
    tree, _ = ship(root, store)
    fetch_tree(store, tree.digest, tmp_path / "tree")
    (tmp_path / "tree" / "checkpoint").write_text("of an earlier attempt")
    fetch_tree(store, tree.digest, tmp_path / "tree")
    assert (tmp_path / "tree" / "checkpoint").exists()


def test_several_at_once_make_one(root, tmp_path):
    store = MemoryStore()
    tree, _ = ship(root, store)
    errors: list[Exception] = []
    together = threading.Barrier(8)

    def fetch() -> None:
        try:
            together.wait()
            fetch_tree(store, tree.digest, tmp_path / "work" / "tree")
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert read_tree(tmp_path / "work" / "tree").digest == tree.digest
    assert is_alone(tmp_path / "work")


class Breaking(MemoryStore):
    def read_into(self, key, buffer):
        buffer[:10] = self.get(key)[0][:10]
        raise Unavailable("the network is gone")


def test_what_breaks_off_leaves_nothing(root, tmp_path):
    store = Breaking()
    tree, _ = ship(root, store)
    with pytest.raises(Unavailable, match="the network is gone"):
        fetch_tree(store, tree.digest, tmp_path / "work" / "tree")
    assert list((tmp_path / "work").iterdir()) == []


def test_what_a_killed_process_left_is_deleted_and_what_a_live_one_makes_is_not(root, tmp_path):
    store = MemoryStore()
    tree, _ = ship(root, store)
    work = tmp_path / "work"
    dead, alive = work / ".half-dead", work / ".half-alive"
    for folder in (dead, alive):
        (folder / "tree").mkdir(parents=True)
    descriptor = os.open(alive, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        fetch_tree(store, tree.digest, work / "tree")
        assert alive.exists()
        assert not dead.exists()
    finally:
        os.close(descriptor)


def damaged(root: Path, tmp_path: Path, change) -> str:
    store = MemoryStore("s3://bucket/.trees")
    tree, _ = ship(root, store)
    key = object_name(tree.digest)
    store.put(key, change(store.get(key)[0]))
    with pytest.raises(
        Rejected, match=r"\.tar\.gz is damaged \(.*\): delete it, and ship again with"
    ) as refused:
        fetch_tree(store, tree.digest, tmp_path / "work" / "tree")
    assert list((tmp_path / "work").iterdir()) == []
    return str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[: len(data) // 2],
        lambda _: b"",
        lambda _: b"no archive",
        lambda data: gzip.compress(gzip.decompress(data)[:600]),
        lambda data: gzip.compress(gzip.decompress(data).replace(b"hi", b"ho")),
    ],
    ids=["half", "empty", "no archive", "a broken archive", "other content"],
)
def test_what_is_damaged_is_never_used(root, tmp_path, change):
    damaged(root, tmp_path, change)


def test_a_flipped_bit_is_refused_or_changes_nothing_wherever_it_is(root, tmp_path):
    """Padding and times may hold anything; what is unpacked is what was shipped, or nothing is."""
    store = MemoryStore()
    tree, _ = ship(root, store)
    whole = store.get(object_name(tree.digest))[0]
    num_refused = 0
    for place in range(0, len(whole), 17):
        store.put(object_name(tree.digest), whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        folder = tmp_path / str(place)
        try:
            fetch_tree(store, tree.digest, folder / "tree")
        except Rejected:
            num_refused += 1
            assert list(folder.iterdir()) == []
        else:
            assert read_tree(folder / "tree").digest == tree.digest
    assert num_refused > len(whole) / 17 / 2


def test_another_directory_is_not_taken_for_this_one(root, tmp_path):
    assert "it holds another directory" in damaged(
        root, tmp_path, lambda _: archive(member("train.py", data=b"x"))
    )


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("/tmp/evil")],
        [member("a/../../evil")],
        [member("./a"), member("a/./b")],
        [member("a", tarfile.LNKTYPE, "/etc/passwd")],
        [member("a", tarfile.CHRTYPE)],
        [member("a", tarfile.FIFOTYPE)],
        [member("a"), member("a")],
        [member("a", tarfile.SYMTYPE, ".."), member("a/evil", data=b"x")],
    ],
    ids=[
        "parent",
        "absolute",
        "through parent",
        "dots",
        "hard link",
        "device",
        "pipe",
        "twice",
        "through a link",
    ],
)
def test_an_archive_writes_nowhere_else(tmp_path, members):
    store = stored(archive(*members))
    with pytest.raises((Rejected, Unavailable)):
        fetch_tree(store, "a" * 64, tmp_path / "work" / "tree")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["work"]


@pytest.mark.parametrize("target", ["../../outside", "/etc"], ids=["relative", "absolute"])
def test_a_link_out_of_the_directory_is_refused_also_with_its_digest(tmp_path, target):
    digest = digest_of([Entry(path="out", kind="link", content=target)])
    store = stored(archive(member("out", tarfile.SYMTYPE, target)), digest)
    with pytest.raises(Rejected, match="the link out leads out of the directory"):
        fetch_tree(store, digest, tmp_path / "work" / "tree")


def test_what_is_not_in_s3_is_to_be_shipped_again(tmp_path):
    store = MemoryStore("s3://bucket/.trees")
    with pytest.raises(
        Rejected, match=r"aaaaaaaaaaaa is not in s3://bucket/\.trees: ship it again with `div run` or `slug"
    ):
        fetch_tree(store, "a" * 64, tmp_path / "tree")
    with pytest.raises(Rejected, match="ship it again"):
        read_listing(store, "a" * 64)


def test_what_is_not_in_a_directory_may_be_on_another_host(tmp_path):
    store = LocalStore(tmp_path / "store")
    with pytest.raises(Unavailable, match="on this host: only the host on which it was shipped has it"):
        fetch_tree(store, "a" * 64, tmp_path / "tree")


def test_a_listing_of_another_directory_is_refused(root):
    store = MemoryStore("s3://bucket/.trees")
    tree, _ = ship(root, store)
    store.put(f"{'a' * 64}.json", store.get(f"{tree.digest}.json")[0])
    with pytest.raises(Rejected, match="it lists another directory"):
        read_listing(store, "a" * 64)
    store.put(f"{'a' * 64}.json", b"{")
    with pytest.raises(Rejected, match="is damaged"):
        read_listing(store, "a" * 64)


def test_a_host_without_room_is_said_so(root, tmp_path):
    store = MemoryStore()
    tree, _ = ship(root, store)
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"cannot be unpacked as .* set SLUGLINE_WORK_DIR"):
        fetch_tree(store, tree.digest, tmp_path / "file" / "tree")


def test_links_that_lead_out_only_together_are_damage(tmp_path):
    """The first leads nowhere while the second is not there yet."""
    links = {"a": "b/..", "b": "."}
    entries = [Entry(path=path, kind="link", content=target) for path, target in links.items()]
    members = (member(path, tarfile.SYMTYPE, target) for path, target in links.items())
    store = stored(archive(*members), digest := digest_of(entries))
    with pytest.raises(Rejected, match="the link a leads out of the directory"):
        fetch_tree(store, digest, tmp_path / "work" / "tree")
    assert not list((tmp_path / "work").iterdir())


def test_a_name_that_no_file_can_have_is_damage(tmp_path):
    store = stored(archive(member("a\0b" + "c" * 100)))
    with pytest.raises(Rejected, match="damaged"):
        fetch_tree(store, "a" * 64, tmp_path / "tree")
