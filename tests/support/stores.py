"""What every checkpoint store must do: one class, inherited by the tests of each."""

from __future__ import annotations

import copy
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from runtime.checkpoints.local import LocalStore
from runtime.checkpoints.store import Conflict, Missing, Truncated, require_conditional_writes

if TYPE_CHECKING:
    from runtime.checkpoints.s3 import S3Store
    from runtime.checkpoints.store import Store

HALF_A_MIB = os.urandom(512 * 1024 + 7)


def below(store: LocalStore | S3Store, name: str) -> LocalStore | S3Store:
    """The store of a folder in that of `store`; an S3 store's clients, costly to make, are shared."""
    if isinstance(store, LocalStore):
        return LocalStore(store.root / name)
    lower = copy.copy(store)
    lower.url = f"{store.url}/{name}"
    lower._prefix = f"{store._prefix}{name}/"
    return lower


class StoreConformance:
    """Inherit and define a fixture `store`: a fresh, empty one."""

    @pytest.mark.parametrize("data", [b"", b"{}", HALF_A_MIB], ids=["empty", "small", "large"])
    @pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
    def test_what_was_put_is_read_back(self, store: Store, data: bytes, form):
        store.put("step-00000001/a b+c.bin", form(data))
        assert store.get("step-00000001/a b+c.bin")[0] == data
        buffer = bytearray(len(data))
        store.read_into("step-00000001/a b+c.bin", memoryview(buffer))
        assert buffer == data

    def test_a_put_replaces(self, store: Store):
        store.put("key", b"old and longer")
        store.put("key", b"new")
        assert store.get("key")[0] == b"new"

    def test_reading_what_is_not_there_says_missing(self, store: Store):
        with pytest.raises(Missing):
            store.get("nothing")
        with pytest.raises(Missing):
            store.read_into("folder/nothing", memoryview(bytearray(1)))

    @pytest.mark.parametrize("size", [0, 4, 6])
    def test_reading_into_a_buffer_of_another_size_says_truncated(self, store: Store, size):
        store.put("key", b"12345")
        with pytest.raises(Truncated, match="holds 5 bytes"):
            store.read_into("key", memoryview(bytearray(size)))

    def test_a_new_object_is_created_once(self, store: Store):
        etag = store.put_if("run.json", b"first", etag=None)
        with pytest.raises(Conflict):
            store.put_if("run.json", b"second", etag=None)
        assert store.get("run.json") == (b"first", etag)

    def test_a_swap_needs_the_current_etag(self, store: Store):
        first = store.put_if("run.json", b"first", etag=None)
        second = store.put_if("run.json", b"second", etag=first)
        with pytest.raises(Conflict):
            store.put_if("run.json", b"third", etag=first)
        assert store.get("run.json") == (b"second", second)

    def test_a_swap_of_what_is_gone_conflicts(self, store: Store):
        etag = store.put_if("run.json", b"first", etag=None)
        store.delete(["run.json"])
        with pytest.raises(Conflict):
            store.put_if("run.json", b"second", etag=etag)
        with pytest.raises(Missing):
            store.get("run.json")

    def test_of_many_who_swap_at_once_one_wins(self, store: Store):
        etag = store.put_if("run.json", b"start", etag=None)
        winners: list[int] = []
        start = threading.Barrier(8)

        def swap(number: int) -> None:
            start.wait()
            try:
                store.put_if("run.json", b"winner %d" % number, etag=etag)
            except Conflict:
                return
            winners.append(number)

        threads = [threading.Thread(target=swap, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert store.get("run.json")[0] == b"winner %d" % winners[0]

    def test_a_listing_names_sizes_and_times(self, store: Store):
        before_ms = int(time.time() * 1000)
        store.put("step-00000001/one", b"1")
        store.put("step-00000001/two", b"22")
        store.put("step-00000010/three", b"333")
        store.put("run.json", b"{}")
        assert {found.key: found.size_bytes for found in store.list("step-00000001/")} == {
            "step-00000001/one": 1,
            "step-00000001/two": 2,
        }
        assert {found.key for found in store.list("step-")} == {
            "step-00000001/one",
            "step-00000001/two",
            "step-00000010/three",
        }
        assert "run.json" in {found.key for found in store.list()}
        # S3 keeps whole seconds; another machine's clock would differ by more.
        assert all(abs(found.modified_ms - before_ms) < 60_000 for found in store.list())

    def test_an_empty_store_lists_nothing(self, store: Store):
        assert list(store.list()) == []
        assert list(store.list("step-")) == []

    def test_deleting_is_no_error_when_nothing_is_there(self, store: Store):
        store.put("step-00000001/one", b"1")
        store.delete(["step-00000001/one", "step-00000001/never"])
        store.delete([])
        assert list(store.list("step-")) == []

    def test_more_objects_than_a_page_or_a_request_takes(self, store: Store):
        keys = [f"logs/{number:04d}" for number in range(1003)]

        def put_all(part: list[str]) -> None:
            for key in part:
                store.put(key, b"")

        threads = [threading.Thread(target=put_all, args=(keys[start::8],)) for start in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found.key for found in store.list("logs/")) == keys
        store.delete(keys)
        assert list(store.list("logs/")) == []

    def test_conditional_writes_are_kept_and_the_probe_leaves_nothing(self, store: Store):
        require_conditional_writes(store, "tmp/probe-1")
        assert list(store.list()) == []
