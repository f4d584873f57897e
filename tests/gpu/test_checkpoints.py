"""Snapshots off a GPU: pinned memory, and what was, not what came later."""

import pytest
import torch

from runtime.checkpoints.format import read_tensors
from runtime.checkpoints.snapshot import Snapshots
from tests.support.checkpoints import same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_snapshot_off_the_gpu_is_what_was_at_the_call():
    tensors = {
        "weight": torch.randn(1 << 20, device="cuda"),
        "half": torch.randn(1000, 3, device="cuda").to(torch.bfloat16).t(),
        "step": torch.tensor(3.0),
    }
    before = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
    snapshots = Snapshots(expected_bytes=8 << 20, pin=True, shard_bytes=1 << 20)
    layout, _ = snapshots.take(tensors)
    for tensor in tensors.values():
        tensor.zero_()
    torch.cuda.synchronize()
    views = [snapshots.view(shard.start, shard.size_bytes) for shard in layout.shards]
    files = [torch.frombuffer(bytearray(view), dtype=torch.uint8) for view in views]
    assert same(read_tensors(files, layout.whole), before)
    assert snapshots._buffer.tensor.is_pinned()
    snapshots.close()
