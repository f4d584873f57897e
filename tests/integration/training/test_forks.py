"""What a loader's worker inherits must not outlive what it was for."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from runtime.checkpoints.local import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_worker_forked_while_the_record_is_swapped_does_not_keep_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Fork in one thread, swap in another: the child holds the lock's open file until it ends."""
    monkeypatch.setattr("runtime.checkpoints.local.LOCK_WITHIN_S", 0.1)
    store = LocalStore(tmp_path)
    with store._locked():
        worker = os.fork()
        if not worker:
            signal.pause()
            os._exit(0)
    try:
        store.put_if("run.json", b"{}", etag=None)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
