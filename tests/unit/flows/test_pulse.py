"""Signs of life and logs at the location."""

from __future__ import annotations

import pytest

from flows.pulse import UPLOAD_LIMIT_BYTES, Upkeep, log_name, read_pulse
from runtime.checkpoints.memory import MemoryStore
from runtime.errors import Unavailable


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def upkeep(store) -> Upkeep:
    return Upkeep(store, "t", progress=lambda: (7, 99))


def test_every_tick_is_another_sign_of_life(store, upkeep):
    assert read_pulse(store) is None
    beats = []
    for _ in range(3):
        upkeep.tick()
        pulse = read_pulse(store)
        assert pulse is not None
        beats.append(pulse.beat)
        assert (pulse.token, pulse.step, pulse.event_ms) == ("t", 7, 99)
    assert beats == [1, 2, 3]


def test_the_last_tick_uploads_what_the_log_holds(store, upkeep, tmp_path):
    log = tmp_path / "log"
    upkeep.follow(log, 1)
    log.write_text("a line\n")
    upkeep.tick()
    assert [found.key for found in store.list("logs/")] == []
    upkeep.close()
    upkeep.tick()
    assert store.get("logs/attempt-0001.log")[0] == b"a line\n"


def test_the_log_of_an_attempt_is_uploaded_whole_when_the_next_begins(store, upkeep, tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).write_text(f"{number}\n")
        upkeep.follow(tmp_path / str(number), number)
    upkeep.tick()
    assert store.get(log_name(1))[0] == b"1\n"


def test_of_earlier_attempts_logs_is_uploaded_what_the_location_has_not_whole(store, upkeep, tmp_path):
    """Of a run killed twice in quick succession, what the first attempt left was lost."""
    logs = {number: tmp_path / str(number) for number in (1, 2, 3)}
    for number, path in logs.items():
        path.write_text(f"{number}\nthe end\n")
    store.put(log_name(1), b"1\n")
    store.put(log_name(3), same := b"X" * logs[3].stat().st_size)  # seen by its size: nothing to do
    upkeep.catch_up({**logs, 4: tmp_path / "gone"})
    upkeep.tick()
    assert [store.get(log_name(number))[0] for number in logs] == [b"1\nthe end\n", b"2\nthe end\n", same]


def test_a_log_that_could_not_be_uploaded_is_tried_again(store, upkeep, tmp_path, monkeypatch):
    for number in (1, 2):
        (tmp_path / str(number)).write_text(f"{number}\n")
        upkeep.follow(tmp_path / str(number), number)

    def away(*_args):
        raise Unavailable("no bucket")

    with monkeypatch.context() as patched:
        patched.setattr(store, "put", away)
        with pytest.raises(Unavailable):
            upkeep.tick()
    upkeep.tick()
    assert store.get(log_name(1))[0] == b"1\n"


def test_an_enormous_log_keeps_its_beginning_and_its_end(store, upkeep, tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"first line\n")
        file.seek(2 * UPLOAD_LIMIT_BYTES)
        file.write(b"\nlast line\n")
    upkeep.follow(log, 1)
    upkeep.close()
    upkeep.tick()
    kept = store.get(log_name(1))[0]
    store.put(log_name(1), bytes(len(kept)))
    upkeep.catch_up({1: log})
    upkeep.tick()
    assert store.get(log_name(1))[0] == bytes(len(kept))  # of the right length: it is not uploaded again
    assert len(kept) < UPLOAD_LIMIT_BYTES + 100
    assert kept.startswith(b"first line\n")
    assert kept.endswith(b"\nlast line\n")
    assert b"... 33554443 bytes left out ...\n" in kept
