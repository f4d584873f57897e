"""A telemetry file at the run's location."""

from __future__ import annotations

import os

import pytest

from flows import kept_telemetry
from flows.kept_telemetry import keep_telemetry
from runtime.checkpoints.memory import MemoryStore


def kept(store: MemoryStore) -> dict[str, bytes]:
    return {found.key: store.get(found.key)[0] for found in store.list()}


def test_a_file_is_kept_masked_under_its_host(tmp_path):
    path = tmp_path / "telemetry.jsonl"
    path.write_bytes(b'{"loss":1,"token":"hunter2-but-longer"}\n{"torn')
    store = MemoryStore()
    keep_telemetry(store, path, host="a/b", secrets={"TOKEN": "hunter2-but-longer"})
    assert kept(store) == {"telemetry/a%2Fb/0001.jsonl": b'{"loss":1,"token":"***"}\n{"torn'}


def test_a_large_file_is_kept_in_parts_that_are_it(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_telemetry, "PART_BYTES", 64)
    monkeypatch.setattr(kept_telemetry, "READ_BYTES", 10)
    path = tmp_path / "telemetry.jsonl"
    path.write_bytes(b'{"step":1}\n' * 40)
    store = MemoryStore()
    keep_telemetry(store, path, host="h", secrets={})
    parts = kept(store)
    assert len(parts) > 3
    assert b"".join(parts[key] for key in sorted(parts)) == path.read_bytes()


def test_no_file_and_an_empty_one_keep_nothing(tmp_path):
    store = MemoryStore()
    keep_telemetry(store, tmp_path / "none", host="h", secrets={})
    (tmp_path / "empty").touch()
    keep_telemetry(store, tmp_path / "empty", host="h", secrets={})
    assert kept(store) == {}


@pytest.mark.timeout(10)
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    store = MemoryStore()
    keep_telemetry(store, tmp_path / "pipe", host="h", secrets={})
    assert kept(store) == {}
