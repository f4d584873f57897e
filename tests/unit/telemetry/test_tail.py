"""The tail: what is written arrives once, whatever happens to the file, to the server or to the tail."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING

import pytest

from runtime.telemetry.cursor import Cursor
from runtime.telemetry.destination import MemoryDestination, Moved, Refused, Trouble
from runtime.telemetry.tail import Tail, TailThread
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "8675309-token"
KEY = '{"first": 1,\n"second": 2}'


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Run:
    """A telemetry file, what reads it and where that goes."""

    def __init__(self, directory: Path):
        self.path = directory / "telemetry.jsonl"
        self.destination = MemoryDestination()
        self.clock = Clock()
        self.said: list[str] = []
        self.tail = self.new_tail()

    def new_tail(self):
        secrets = {"TOKEN": SECRET, "KEY": KEY}
        return Tail(self.path, self.destination, secrets=secrets, say=self.said.append, clock=self.clock)

    def restart(self):
        self.tail.close()
        self.tail = self.new_tail()

    def write(self, data: bytes, path: Path | None = None):
        with (path or self.path).open("ab") as file:
            file.write(data)

    def read(self):
        """Read all that is there, and return the points of this reading."""
        before = len(self.destination.points)
        while self.tail.turn() is not None:
            pass
        return self.destination.points[before:]

    def has(self, count: int) -> bool:
        return len(self.destination.points) >= count

    @property
    def dropped(self):
        return self.destination.dropped


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    yield run
    run.tail.close()


def test_a_point_per_line_and_none_before_its_line_feed(run):
    run.write(b'{"a": 1}\n{"a": 2}\n{"a"')
    assert run.read() == [{"a": 1}, {"a": 2}]
    run.write(b": 3}\n")
    assert run.read() == [{"a": 3}]
    assert run.read() == []


def test_a_character_that_is_split_by_a_read_is_whole(run):
    line = '\ufeff{"ü": "\u2028ö\u0085", "a": 1}\r\n'.encode()  # one record: lines end at line feeds alone
    for index in range(len(line)):
        run.write(line[index : index + 1])
        run.tail.turn()
    assert run.destination.points == [{"a": 1}]
    assert not run.dropped


def test_a_file_that_is_not_there_yet_is_waited_for(run):
    assert run.read() == []
    run.write(b'{"a": 1}\n')
    assert run.read() == [{"a": 1}]


def test_a_tail_that_died_is_gone_on_from_where_it_delivered(run):
    run.write(b'{"a": 1}\n{"a": 2')
    run.read()
    run.restart()
    run.write(b"}\n")
    assert run.read() == [{"a": 2}]


def test_a_renamed_file_is_read_to_its_end_and_the_new_one_from_its_beginning(run):
    run.write(b'{"a": 1}\n')
    run.read()
    run.write(b'{"a": 2}\n')
    old = run.path.rename(run.path.with_suffix(".1"))
    run.write(b'{"a": 4}\n')
    assert run.read() == [{"a": 2}, {"a": 4}]
    run.write(b'{"a": 3}\n', old)
    run.write(b'{"a": 5}\n')
    assert run.read() == [{"a": 3}, {"a": 5}]


def test_a_file_that_is_renamed_while_no_tail_lives_is_found_in_its_folder(run):
    run.write(b'{"a": 1}\n')
    run.read()
    run.tail.close()
    run.write(b'{"a": 2}\n')
    run.path.rename(run.path.with_suffix(".1"))
    run.write(b'{"a": 3}\n')
    run.restart()
    assert run.read() == [{"a": 2}, {"a": 3}]


def test_a_renamed_file_is_left_when_it_is_quiet_and_its_torn_line_counted_once(run):
    run.write(b'{"a": 1}\n{"a":')
    run.read()
    run.path.rename(run.path.with_suffix(".1"))
    run.write(b'{"a": 2}\n')
    assert run.read() == [{"a": 2}]
    assert not run.dropped
    run.clock.now += 5
    run.read()
    assert run.dropped == {"not_json": 1}
    assert [len(run.destination.place.files), len(run.destination.place.past)] == [1, 1]
    run.restart()
    assert run.read() == []
    assert run.dropped == {"not_json": 1}


def test_a_file_that_has_its_old_name_again_is_not_read_twice(run):
    run.write(b'{"a": 1}\n')
    run.read()
    old = run.path.rename(run.path.with_suffix(".1"))
    run.write(b'{"a": 2}\n')
    run.read()
    run.clock.now += 5
    run.read()
    old.rename(run.path)
    run.write(b'{"a": 3}\n')
    assert run.read() == [{"a": 3}]


def test_a_replaced_file_is_read_from_its_beginning(run, tmp_path):
    run.write(b'{"a": 1}\n')
    run.read()
    run.write(b'{"a": 2}\n')
    run.write(b'{"b": 1}\n', tmp_path / "new")
    (tmp_path / "new").rename(run.path)
    assert run.read() == [{"a": 2}, {"b": 1}]


def test_a_file_that_was_deleted_is_read_to_its_end(run):
    run.write(b'{"a": 1}\n')
    with run.path.open("ab") as file:
        run.read()
        run.path.unlink()
        file.write(b'{"a": 2}\n')
    assert run.read() == [{"a": 2}]


@pytest.mark.parametrize("first", [b"", b'{"step": 1, "loss": 0.5}\n' * 100], ids=["short", "long"])
def test_a_file_that_was_cut_and_written_anew_is_read_from_its_beginning(run, first):
    run.write(first + b'{"a": 1}\n{"a": 2}\n')
    run.read()
    run.path.write_bytes(b'{"b": 1}\n')
    assert run.read() == [{"b": 1}]
    os.truncate(run.path, 0)
    assert run.read() == []
    run.write(b'{"b": 2}\n')
    assert run.read() == [{"b": 2}]


def test_a_file_that_was_written_anew_beyond_what_was_read_is_read_from_its_beginning(run):
    run.write(b'{"a": 1}\n')
    run.read()
    run.path.write_bytes(b'{"b": 1}\n{"b": 2}\n{"b": 3}\n')
    assert run.read() == [{"b": 1}, {"b": 2}, {"b": 3}]


def test_a_file_of_the_same_inode_that_was_written_anew_while_no_tail_lived_is_read_whole(run):
    run.write(b'{"a": 1}\n')
    run.read()
    run.path.write_bytes(b'{"b": 1}\n{"b": 2}\n{"b": 3}\n')
    run.restart()
    assert run.read() == [{"b": 1}, {"b": 2}, {"b": 3}]


@pytest.mark.parametrize("restarts", [False, True])
def test_cutting_off_a_torn_line_doubles_nothing(run, restarts):
    run.write(b'{"a": 1}\n')
    whole = run.path.stat().st_size
    run.write(b'{"a": 2')
    run.read()
    os.truncate(run.path, whole)
    if restarts:
        run.restart()
    run.write(b'{"a": 3}\n{"a": 4}\n')
    assert run.read() == [{"a": 3}, {"a": 4}]
    assert run.dropped == ({} if restarts else {"not_json": 1})


@pytest.mark.parametrize("restarts", [False, True])
def test_cutting_off_a_torn_line_that_was_counted_already_doubles_nothing(run, restarts):
    run.write(b'{"a": 1}\n')
    whole = run.path.stat().st_size
    run.write(b'{"a": 2')
    run.tail.end_here()
    run.read()
    if restarts:
        run.restart()
    os.truncate(run.path, whole)
    run.write(b'{"a": 3}\n{"a": 4}\n')
    assert run.read() == [{"a": 3}, {"a": 4}]
    assert run.dropped == {"not_json": 1}


@pytest.mark.parametrize("restarts", [False, True])
def test_cutting_off_lines_that_were_read_doubles_nothing(run, restarts):
    lines = b"".join(b'{"step": %d}\n' % step for step in range(100))
    run.write(lines)
    run.read()
    os.truncate(run.path, len(lines) // 2 // 13 * 13)
    if restarts:
        run.restart()
    run.read()
    run.write(b'{"step": 50}\n')
    assert run.read() == [{"step": 50}]
    assert not run.dropped


def test_zeros_before_a_line_are_a_hole_and_no_part_of_it(run):
    run.write(b'{"a": 1}\n')
    run.read()
    os.truncate(run.path, 0)
    with run.path.open("r+b") as file:
        file.seek(100_000)
        file.write(b'{"a": 2}\n')
    assert run.read() == [{"a": 2}]
    assert not run.dropped


def test_what_a_killed_process_left_of_a_line_is_counted_once_and_the_next_line_whole(run):
    run.write(b'{"step":1')
    run.read()
    run.tail.end_here()
    run.write(b'{"step":2}\n')
    assert run.read() == [{"step": 2}]
    assert run.dropped == {"not_json": 1}


def test_where_an_attempt_ended_is_known_even_if_nothing_could_be_delivered_then(run, monkeypatch):
    def down(*_):
        raise Trouble("down")

    run.write(b'{"step":1')
    with monkeypatch.context() as patched:
        patched.setattr(run.destination, "cursor", down)
        run.tail.end_here()
        with pytest.raises(Trouble):
            run.tail.turn()
    run.write(b'{"step":2}\n{"ste')
    with monkeypatch.context() as patched:
        patched.setattr(run.destination, "send", down)
        with pytest.raises(Trouble):
            run.tail.turn()
        run.tail.close()
        run.tail.end_here()
    run.write(b'{"step":3}\n')
    assert run.read() == [{"step": 2}, {"step": 3}]
    assert run.dropped == {"not_json": 2}


def test_the_last_line_needs_no_line_feed_once_nobody_writes(run):
    run.write(b'{"a": 1}\n{"a": 2}')
    assert run.read() == [{"a": 1}]
    run.tail.end_here()
    assert run.read() == [{"a": 2}]
    run.restart()
    run.write(b"\n")
    run.write(b'{"a": 3}\n')
    assert run.read() == [{"a": 3}]
    assert not run.dropped


def test_a_line_without_end_costs_no_memory_and_the_next_one_is_read(run):
    with run.path.open("wb") as file:
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b'\n{"a": 1}\n')
    run.tail = Tail(run.path, run.destination, say=run.said.append)
    tracemalloc.start()
    try:
        assert run.read() == [{"a": 1}]
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert run.dropped == {"too_long": 1}


def test_each_reason_is_said_once_in_the_log_also_after_a_restart(run):
    run.write(b"no\n[]\nno\n")
    run.read()
    run.restart()
    run.write(b"no\n")
    run.read()
    assert run.said == [
        "telemetry: dropped a line that is not JSON; write one JSON object per line",
        "telemetry: dropped a line that is JSON but not an object; write one JSON object per line",
    ]
    assert run.dropped == {"not_json": 3, "not_object": 1}


def test_batches_are_bounded_and_lose_nothing_between_them(run):
    run.write(b"".join(b'{"a": %d}\n' % number for number in range(2_500)))
    sizes = []
    while batch := run.tail.turn():
        sizes.append(len(batch.points))
        run.restart()
    assert sizes == [1_000, 1_000, 500]
    assert run.destination.points == [{"a": number} for number in range(2_500)]


def test_a_batch_whose_answer_was_lost_is_not_stored_twice(run, monkeypatch):
    send = run.destination.send

    def lose(batch):
        send(batch)
        raise Trouble("the connection broke")

    run.write(b'{"a": 1}\n')
    with monkeypatch.context() as patched:
        patched.setattr(run.destination, "send", lose)
        with pytest.raises(Trouble):
            run.tail.turn()
    run.write(b'{"a": 2}\n')
    run.read()
    assert run.destination.points == [{"a": 1}, {"a": 2}]


def test_a_tail_that_finds_another_one_at_work_does_not_spin(run, monkeypatch):
    def moved(_batch):
        raise Moved("elsewhere")

    run.write(b'{"a": 1}\n')
    monkeypatch.setattr(run.destination, "send", moved)
    with pytest.raises(Trouble, match="another tail"):
        run.tail.turn()


def test_a_run_that_comes_back_to_a_host_goes_on_in_its_file_there(run, tmp_path):
    run.write(b'{"host": 1}\n')
    run.read()
    home, run.path = run.path, tmp_path / "elsewhere" / "telemetry.jsonl"
    run.path.parent.mkdir()
    run.restart()
    run.write(b'{"host": 2}\n')
    assert run.read() == [{"host": 2}]
    run.path = home
    run.restart()
    run.write(b'{"host": 3}\n')
    assert run.read() == [{"host": 3}]


def test_secrets_are_masked_before_a_line_is_read(run):
    run.write(b'{"a": "8675309-')
    run.read()
    run.write(b'token", "b": 1}\n{"8675309-token": 5}\n')
    assert run.read() == [{"b": 1}, {}]
    assert run.dropped == {"bad_key": 1}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_secret_of_several_lines_is_masked_also_when_the_tail_dies_between_them(run, restarts):
    first, second = KEY.encode().split(b"\n")
    run.write(b'{"a": 1}\n' + first + b"\n")
    assert run.read() == [{"a": 1}]
    if restarts:
        run.restart()
    run.write(second + b'\n{"a": 2}\n')
    assert run.read() == [{"a": 2}]
    assert run.dropped == {"not_json": 2}


def test_what_is_no_regular_file_is_not_read(run):
    os.mkfifo(run.path)
    assert run.read() == []
    run.path.unlink()
    run.path.mkdir()
    assert run.read() == []


def test_a_cursor_is_plain_json_of_a_few_kib_and_comes_back_equal(run, tmp_path):
    for number in range(40):
        run.write(b'{"a": %d}\n' % number * 200)
        run.read()
        run.path.rename(tmp_path / f"old-{number}")
        run.clock.now += 5
    cursor = run.destination.place
    text = json.dumps(cursor.to_json())
    assert len(text) < 12_000
    assert Cursor.from_json(json.loads(text)).files == cursor.files
    assert Cursor.from_json(None) == Cursor()


@pytest.mark.parametrize("data", [1, {}, {"version": 2}, {"version": 1, "files": [{}], "past": []}], ids=str)
def test_what_is_no_cursor_is_refused(data):
    with pytest.raises(ValueError, match=r"cursor|place"):
        Cursor.from_json(data)


def test_a_thread_delivers_within_a_second_and_reads_to_the_end(run):
    thread = TailThread(run.tail)
    thread.start()
    for number in range(1, 31):
        run.write(b'{"a": %d}\n' % number)
        begin = time.monotonic()
        wait_until(partial(run.has, number), within_s=60, poll_s=0.01)
        if time.monotonic() - begin < 1:
            break  # those before it met a busy machine
    else:
        pytest.fail("thirty times it took a second and more")
    run.write(b'{"a": %d}\n{"a": %d}' % (number + 1, number + 2))
    assert thread.finish(timeout_s=60)
    assert run.destination.points == [{"a": place} for place in range(1, number + 3)]


def test_a_thread_waits_out_trouble_and_says_when_nothing_could_be_delivered(run, monkeypatch, caplog):
    def down(*_):
        raise Trouble("connection refused")

    monkeypatch.setattr(run.destination, "cursor", down)
    run.write(b'{"a": 1}\n')
    thread = TailThread(run.tail, poll_s=0.01)
    thread.start()
    said = "telemetry waits, and stays in its file meanwhile: connection refused"
    wait_until(lambda: said in caplog.text, within_s=60, poll_s=0.01)
    assert not thread.finish(timeout_s=0.05)


def test_a_thread_ends_when_the_run_is_gone(run, monkeypatch, caplog):
    def gone(*_):
        raise Refused("no run of this name")

    monkeypatch.setattr(run.destination, "cursor", gone)
    thread = TailThread(run.tail, poll_s=0.01)
    thread.start()
    assert not thread.finish(timeout_s=60)
    assert "not taken any more: no run of this name" in caplog.text
