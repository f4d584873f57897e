import ctypes
import mmap
import os
import resource
import time

import pytest
import torch

from runtime.checkpoints import buffer
from runtime.checkpoints.buffer import HostBuffer
from runtime.checkpoints.snapshot import Snapshots


def resident_bytes():
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * 4096


def resident_part(buffer):
    """How much of a buffer is in memory: what else a process gives back meanwhile is not counted."""
    pages = (ctypes.c_ubyte * -(-buffer.size_bytes // mmap.PAGESIZE))()
    address, size = ctypes.c_void_p(buffer.tensor.data_ptr()), ctypes.c_size_t(buffer.size_bytes)
    assert ctypes.CDLL(None).mincore(address, size, pages) == 0
    return sum(page & 1 for page in pages) / len(pages)


def content(snapshots, layout):
    return [bytes(snapshots.view(shard.start, shard.size_bytes)) for shard in layout.shards]


def test_the_memory_is_touched_before_the_first_snapshot():
    snapshots = Snapshots(expected_bytes=64 << 20)
    snapshots._ready.join()
    assert resident_part(snapshots._buffer) == 1
    snapshots.close()


def test_a_snapshot_takes_no_more_memory():
    state = {str(number): torch.ones(1 << 20) for number in range(16)}
    snapshots = Snapshots(expected_bytes=64 << 20)
    snapshots._ready.join()
    before = resident_bytes()
    snapshots.take(state)
    assert resident_bytes() - before < 8 << 20
    snapshots.close()


def test_the_same_layout_is_kept_while_the_state_keeps_its_shapes():
    snapshots = Snapshots(expected_bytes=0)
    first, _ = snapshots.take({"a": torch.ones(3), "b": torch.ones(2)})
    second, _ = snapshots.take({"a": torch.zeros(3), "b": torch.ones(2)})
    third, _ = snapshots.take({"a": torch.zeros(3), "b": torch.ones(2, dtype=torch.int32)})
    fourth, _ = snapshots.take({"b": torch.zeros(2), "a": torch.ones(3)})
    assert first is second
    assert len({id(second), id(third), id(fourth)}) == 3
    snapshots.close()


def test_the_next_snapshot_overwrites_the_last_one_whole():
    snapshots = Snapshots(expected_bytes=0, shard_bytes=100)
    large = {"a": torch.randn(50), "b": torch.randn(10)}
    layout, _ = snapshots.take(large)
    first = content(snapshots, layout)
    snapshots.take({"a": torch.zeros(3)})
    layout, _ = snapshots.take(large)
    assert content(snapshots, layout) == first
    snapshots.close()


def test_the_time_of_the_first_copy_is_told():
    snapshots = Snapshots(expected_bytes=0)
    before_s = time.perf_counter()
    _, started_s = snapshots.take({"a": torch.ones(3)})
    assert before_s < started_s < time.perf_counter()
    snapshots.close()


def test_closing_while_the_memory_is_still_being_touched_stops_that():
    """As good as before the first piece: the closing may come a few pieces later on a busy machine."""
    snapshots = Snapshots(expected_bytes=4 << 30)
    snapshots.close()
    assert resident_part(snapshots._buffer) < 1


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 5000])
def test_a_buffer_is_the_same_bytes_as_a_tensor_and_as_a_view(size_bytes):
    one = HostBuffer(size_bytes)
    one.touch()
    one.tensor[-1] = 7
    assert one.view[-1] == 7
    assert len(one.view) == len(one.tensor) == max(size_bytes, 1)


def test_an_older_kernel_has_its_pages_touched_one_by_one(monkeypatch):
    monkeypatch.setattr(buffer, "MADV_POPULATE_WRITE", 9999)
    older = HostBuffer(32 << 20)
    assert resident_part(older) == 0
    older.touch()
    assert resident_part(older) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # what this is about
def test_a_loaders_worker_does_not_cost_the_next_snapshot_a_copy_of_every_page():
    """A child that shares the pages would make each of them be copied when the parent writes it next."""
    snapshots = Snapshots(expected_bytes=32 << 20)
    state = {"a": torch.ones(8 << 20)}
    snapshots.take(state)
    held, let_go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(held[1], b"!")
        os.read(let_go[0], 1)
        os._exit(0)
    os.read(held[0], 1)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    snapshots.take(state)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
    os.write(let_go[1], b"!")
    os.waitpid(child, 0)
    assert faults < 1000
