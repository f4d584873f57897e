import errno
import fcntl
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from runtime.checkpoints import local
from runtime.checkpoints.local import LocalStore
from runtime.checkpoints.store import Conflict, Missing
from runtime.errors import Unavailable
from tests.support.stores import StoreConformance


class TestLocalStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / "not" / "yet there")


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "location")


@contextmanager
def no_file_grows_beyond(size_bytes):
    """The kernel's own refusal in the middle of a write: part of the data is written, then an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 99_999])
def test_no_space_at_byte_n_leaves_the_old_object_and_nothing_half_written(store, size_bytes):
    store.put("key", b"old")
    with (
        no_file_grows_beyond(size_bytes),
        pytest.raises(Unavailable, match="File too large; free some space"),
    ):
        store.put("key", bytes(100_000))
    assert store.get("key")[0] == b"old"
    assert [found.key for found in store.list()] == ["key"]


def paged(size_bytes):
    """Memory that begins at a page, as a checkpoint's shards do."""
    memory = mmap.mmap(-1, size_bytes)
    memory.write(random.Random(size_bytes).randbytes(size_bytes))
    return memoryview(memory)


@pytest.mark.parametrize("size_bytes", [1 << 20, (1 << 20) + 1, (3 << 20) - 1, 5_000_000])
@pytest.mark.parametrize("offset", [0, 4096, 17])
def test_large_data_goes_past_the_page_cache_and_is_whole(store, size_bytes, offset):
    data = paged(size_bytes + offset)[offset:]
    store.put("key", data)
    assert store.get("key")[0] == data


def test_a_file_system_without_direct_writes_is_written_as_any(store, monkeypatch):
    def refuse(descriptor, data):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "write", refuse)
    data = paged(2 << 20)
    store.put("key", data)
    assert store.get("key")[0] == data


@pytest.mark.parametrize("size_bytes", [4095, 4096, 1_000_000, 2 << 20])
def test_no_space_in_the_middle_of_direct_writes_leaves_the_old_object(store, size_bytes):
    store.put("key", b"old")
    with no_file_grows_beyond(size_bytes), pytest.raises(Unavailable, match="File too large"):
        store.put("key", paged(3 << 20))
    assert store.get("key")[0] == b"old"
    assert [found.key for found in store.list()] == ["key"]


def test_a_full_disk_is_said_with_its_remedy(store):
    error = store._unavailable("write", "run.json", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert str(error) == f"cannot write {store.root}/run.json: No space left on device; free some space"


def test_a_swap_without_space_leaves_the_record_as_it_was(store):
    etag = store.put_if("run.json", b"old", etag=None)
    with no_file_grows_beyond(2), pytest.raises(Unavailable):
        store.put_if("run.json", b"newer", etag=etag)
    assert store.get("run.json") == (b"old", etag)
    assert [found.key for found in store.list()] == ["run.json"]


def test_where_a_directory_should_be_stands_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    store = LocalStore(tmp_path / "file" / "below")
    with pytest.raises(Unavailable, match="Not a directory; check the directory and who may write to it"):
        store.put("run.json", b"{}")


def test_a_checkpoints_folder_that_is_a_file_now_is_missing_not_out_of_reach(store):
    store.put("step-00000004/a", b"x")
    (store.root / "step-00000004" / "a").unlink()
    (store.root / "step-00000004").rmdir()
    (store.root / "step-00000004").write_text("somebody's")
    with pytest.raises(Missing):
        store.get("step-00000004/a")


def test_a_listing_survives_what_is_deleted_under_it(store):
    for number in range(5):
        store.put(f"step-{number:08d}/file", b"")
    listing = store.list("step-")
    next(listing)
    store.delete([f"step-{number:08d}/file" for number in range(5)])
    assert len(list(listing)) <= 4


def test_a_folder_that_loses_its_last_file_goes_and_may_come_back(store):
    """A purge removes the folder between another thread's mkdir and its rename: the put tries again."""
    stop = threading.Event()

    def purge():
        while not stop.is_set():
            store.delete(["step-00000001/old"])

    thread = threading.Thread(target=purge)
    thread.start()
    try:
        for number in range(50):
            store.put(f"step-00000001/{number}", b"")
            store.delete([f"step-00000001/{number}"])
    finally:
        stop.set()
        thread.join()
    assert not (store.root / "step-00000001").exists()


def test_a_killed_writer_leaves_no_part_under_the_final_name(store):
    """SIGKILL in the middle of a put: there is no object, and what was half written is there to be swept."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from runtime.checkpoints.local import LocalStore\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "LocalStore(Path(sys.argv[1])).put('step-00000001/shard', bytes(100_000))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(store.root)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with pytest.raises(Missing):
        store.get("step-00000001/shard")
    assert [found.key.split("/")[0] for found in store.list()] == ["tmp"]


def test_a_lock_that_a_stopped_process_holds_is_given_up_on(store, monkeypatch):
    monkeypatch.setattr(local, "LOCK_WITHIN_S", 0.05)
    store.put("run.json", b"{}")
    with (store.root / ".lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="is held by another process"):
            store.put_if("run.json", b"new", etag=None)
    with pytest.raises(Conflict):
        store.put_if("run.json", b"new", etag=None)
