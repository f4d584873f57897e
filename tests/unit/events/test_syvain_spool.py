import gc
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.events.kinds import Done, Metric
from runtime.events.syvain import spool as spool_module
from runtime.events.syvain.spool import Segments, Spool
from runtime.events.syvain.wire import spool_line, start_line
from runtime.events.targets import Backlog, Segment

SESSION = "a" * 32
EARLIER = "b" * 32


@contextmanager
def tiny_files(size_bytes=40):
    """Files, blocks and index so small that every boundary is met."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "_FIRST_CHUNK_BYTES", size_bytes)
        patch.setattr(spool_module, "_LARGEST_CHUNK_BYTES", 4 * size_bytes)
        patch.setattr(spool_module, "_BLOCK_BYTES", 7)
        patch.setattr(spool_module, "_INDEXED_EVERY", 3)
        yield


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "acknowledge", "read"]),
            st.lists(st.binary(max_size=30).map(bytes.hex), max_size=9),
        ),
        max_size=30,
    ),
    st.data(),
)
def test_a_spool_reads_like_a_list_from_every_position(actions, data):
    with tiny_files():
        spool, acknowledged = Spool(), 0
        model: list[bytes] = []
        for action, texts in actions:
            position = data.draw(st.integers(acknowledged, len(model)))
            if action == "append":
                spool.append([text.encode() + b"\n" for text in texts])
                model += [text.encode() for text in texts]
            elif action == "acknowledge":
                acknowledged = position
                spool.acknowledge(position)
            else:
                assert list(spool.lines(position)) == model[position:]
                check_read(
                    spool, model, position, data.draw(st.integers(1, 12)), data.draw(st.integers(1, 100))
                )
            assert (spool.end, spool.acknowledged) == (len(model), acknowledged)


def check_read(spool, model, position, most_lines, most_bytes):
    read = spool.read(position, most_lines=most_lines, most_bytes=most_bytes)
    assert read == model[position : position + len(read)]
    assert min(1, len(model) - position) <= len(read) <= most_lines
    assert len(read) <= 1 or sum(map(len, read)) <= most_bytes
    if len(read) < min(most_lines, len(model) - position):
        assert sum(map(len, model[position : position + len(read) + 1])) > most_bytes, (
            "one more would not fit"
        )


def num_unnamed_files():
    gc.collect()
    names = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(fd.readlink()))
        except FileNotFoundError:  # the one that the listing itself used
            continue
    return sum("(deleted)" in name for name in names)


def test_files_are_let_go_once_everything_in_them_is_acknowledged():
    with tiny_files():
        before = num_unnamed_files()
        spool = Spool()
        spool.append([b"x" * 50 + b"\n"])
        spool.append([b"x" * 90 + b"\n"])
        spool.append([b"y\n"])
        assert num_unnamed_files() == before + 3
        reading = spool.lines(0)
        assert next(reading) == b"x" * 50
        spool.acknowledge(2)
        assert list(reading) == [b"x" * 90, b"y"], "who reads keeps the files"
        del reading
        assert num_unnamed_files() == before + 1
        assert list(spool.lines(2)) == [b"y"]


def test_files_grow_so_that_a_long_outage_needs_few():
    with tiny_files():
        before = num_unnamed_files()
        spool = Spool()
        for _ in range(100):
            spool.append([b"x" * 15 + b"\n"])
        assert num_unnamed_files() - before <= 12


def test_a_disk_that_is_full_half_way_through_leaves_no_trace(monkeypatch):
    spool = Spool()
    spool.append([b"one\n"])
    real, calls = os.pwrite, []

    def full(fd, data, offset):
        calls.append(data)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(fd, data[:3], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        spool.append([b"two\n", b"three\n"])
    monkeypatch.undo()
    assert list(spool.lines(0)) == [b"one"]
    spool.append([b"four\n"])
    assert list(spool.lines(0)) == [b"one", b"four"]


def test_a_disk_that_is_full_from_the_start_leaves_an_empty_spool(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    spool = Spool()
    spool.append([])
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        spool.append([b"one\n"])
    monkeypatch.undo()
    assert list(spool.lines(0)) == []
    spool.append([b"two\n"])
    assert list(spool.lines(0)) == [b"two"]


def events(session, numbers):
    return b"".join(line(session, number) for number in numbers)


def line(session, number):
    event = Metric(number, number, "loss", 1.0, {})
    return spool_line(session, number, event, event.encode())


@pytest.fixture
def spool():
    return Spool()


@pytest.fixture
def segments(spool):
    return Segments(spool, SESSION)


def add(spool, segments, count):
    first = segments.sequence(spool.end)
    spool.append([line(SESSION, number) for number in range(first, first + count)])


def test_each_event_is_in_one_segment(spool, segments):
    assert segments.cut(0) == Backlog(None, ())
    add(spool, segments, 5)
    first = segments.cut(3)
    assert first == Backlog(
        Segment(f"{SESSION}-1-3.jsonl", events(SESSION, [1, 2, 3])), (f"{SESSION}-1-3.jsonl",)
    )
    assert segments.cut(3) == Backlog(None, first.names)
    second = segments.cut(5)
    assert second.new == Segment(f"{SESSION}-4-5.jsonl", events(SESSION, [4, 5]))
    assert second.names == (f"{SESSION}-1-3.jsonl", f"{SESSION}-4-5.jsonl")


def test_a_segment_is_named_until_its_last_event_is_acknowledged(spool, segments):
    add(spool, segments, 5)
    segments.cut(3)
    spool.acknowledge(2)
    assert segments.cut(3).names == (f"{SESSION}-1-3.jsonl",)
    spool.acknowledge(3)
    assert segments.cut(3) == Backlog(None, ())
    assert segments.cut(5).names == (f"{SESSION}-4-5.jsonl",)


def test_what_is_acknowledged_is_in_no_new_segment(spool, segments):
    add(spool, segments, 5)
    spool.acknowledge(4)
    assert segments.cut(5).new == Segment(f"{SESSION}-5-5.jsonl", events(SESSION, [5]))


def test_inherited_events_come_first_under_their_own_numbers(spool, segments):
    inherited = [Segment("old-1", events(EARLIER, [4, 5])), Segment("old-2", events(EARLIER, [6]))]
    assert segments.inherit(inherited) == 0
    assert segments.sequence(spool.end) == 1
    add(spool, segments, 2)
    assert b"\n".join(spool.lines(0)) + b"\n" == events(EARLIER, [4, 5, 6]) + events(SESSION, [1, 2])
    cut = segments.cut(spool.end)
    assert cut.new == Segment(f"{SESSION}-1-2.jsonl", events(SESSION, [1, 2])), (
        "the others are stored already"
    )
    assert cut.names == ("old-1", "old-2", f"{SESSION}-1-2.jsonl")
    spool.acknowledge(2)
    assert segments.cut(spool.end).names == ("old-2", f"{SESSION}-1-2.jsonl")


def test_an_earlier_attempts_beginning_and_end_are_not_inherited(spool, segments):
    done, error = Done(9, "r"), Done(9, "r", error="boom")
    data = b"".join(
        [
            start_line(EARLIER, 5) + b"\n",
            line(EARLIER, 1),
            spool_line(EARLIER, 2, done, done.encode()),
            spool_line(EARLIER, 3, error, error.encode()),
        ]
    )
    assert segments.inherit([Segment("old", data)]) == 0
    assert list(spool.lines(0)) == [line(EARLIER, 1)[:-1]]


def test_lines_that_are_no_events_are_counted_and_left_out(spool, segments, caplog):
    data = b"torn\n" + line(EARLIER, 1) + line(EARLIER, 2)[:-1]
    assert segments.inherit([Segment("old", data)]) == 1
    assert list(spool.lines(0)) == [line(EARLIER, 1)[:-1], line(EARLIER, 2)[:-1]]
    assert "a line of old is no event" in caplog.text


def test_a_segment_that_there_is_no_room_for_stays_for_the_next_resume(spool, segments, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    segments.inherit([Segment("old", line(EARLIER, 1))])
    monkeypatch.undo()
    add(spool, segments, 1)
    spool.acknowledge(1)
    assert segments.cut(1) == Backlog(None, ("old",))
    assert "old stays for the next resume" in caplog.text
