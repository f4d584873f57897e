import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.errors import Rejected
from runtime.events.kinds import Annotation, Done, Event, Metric, Open
from runtime.events.lines import JsonlTarget, PipeTarget
from runtime.events.stream import EventStream
from tests.support.strict_json import strict_lines

RECORDS: list[Event] = [
    Open(1, "my-run", "d", {"entry": "lm.py"}),
    Metric(2, 0, "loss", 1.5, {}),
    Annotation(3, 4, "stage léger -> 😀\nline two", {"from": "léger", "to": "😀"}),
]
OPEN_AGAIN = Open(4, "my-run", "d", {"entry": "lm.py"})


def write(target, *events):
    target.write(events, [event.encode() for event in events])


def read(path):
    return strict_lines(path.read_bytes())


def test_a_file_is_appended_to_and_never_rewritten(tmp_path):
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        target = JsonlTarget(path)
        target.check()
        write(target, *RECORDS)
        target.sync()
        target.close(1)
    assert path.read_bytes() == b"".join(event.encode() for event in RECORDS) * 2


def test_a_file_that_is_removed_meanwhile_is_begun_anew_and_said(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    target = JsonlTarget(path)
    write(target, *RECORDS)
    path.unlink()
    write(target, OPEN_AGAIN)
    target.close(1)
    assert path.read_bytes() == OPEN_AGAIN.encode()
    assert "was removed" in caplog.text


def test_checking_touches_nothing(tmp_path):
    path = tmp_path / "run.jsonl"
    JsonlTarget(path).check()
    assert not path.exists()
    torn = b"".join(event.encode() for event in RECORDS)[:-5]
    path.write_bytes(torn)
    JsonlTarget(path).check()
    assert path.read_bytes() == torn


def test_each_hand_over_is_one_write(tmp_path, monkeypatch):
    writes = []
    real = os.write
    target = JsonlTarget(tmp_path / "run.jsonl")

    def recording(fd, data):
        writes.append(bytes(data))
        return real(fd, data)

    monkeypatch.setattr(os, "write", recording)
    write(target, *RECORDS)
    target.close(1)
    assert writes == [b"".join(event.encode() for event in RECORDS)]


LAST = RECORDS[-1].encode()


@pytest.mark.parametrize("kept", range(len(LAST) + 1))
def test_a_file_torn_at_any_byte_of_its_last_record_is_strict_after_a_resume(tmp_path, kept, caplog):
    whole = b"".join(event.encode() for event in RECORDS[:-1])
    path = tmp_path / "run.jsonl"
    path.write_bytes(whole + LAST[:kept])
    target = JsonlTarget(path)
    target.check()
    stream = EventStream([target])
    stream.open(OPEN_AGAIN)
    stream.close(timeout_s=60)
    survives = RECORDS[-1:] if kept >= len(LAST) - 1 else []  # only its line feed was lost
    expected = whole + b"".join(event.encode() for event in [*survives, OPEN_AGAIN])
    assert path.read_bytes() == expected
    assert len(read(path)) == 3 + len(survives)
    assert ("cut a torn last line" in caplog.text) == (0 < kept < len(LAST) - 1)
    assert ("line feed, which was added" in caplog.text) == (kept == len(LAST) - 1)


def test_the_only_record_can_be_torn_too(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(OPEN_AGAIN.encode()[:20])
    target = JsonlTarget(path)
    target.check()
    write(target, OPEN_AGAIN)
    target.close(1)
    assert path.read_bytes() == OPEN_AGAIN.encode()


def test_zeros_that_a_power_failure_left_are_cut(tmp_path):
    path = tmp_path / "run.jsonl"
    whole = b"".join(event.encode() for event in RECORDS)
    path.write_bytes(whole + b'{"ts_m' + bytes(5000))
    target = JsonlTarget(path)
    target.check()
    write(target, OPEN_AGAIN)
    target.close(1)
    assert path.read_bytes() == whole + OPEN_AGAIN.encode()


@pytest.mark.parametrize("torn", [Open(1, "r", "x" * 200_000, {}).encode()[:-4], bytes(3 << 20)])
def test_a_torn_line_longer_than_one_read_is_cut_whole(tmp_path, torn):
    """A power failure may leave more zeros than any line is long: what stayed of them would tear the next."""
    path = tmp_path / "run.jsonl"
    whole = b"".join(event.encode() for event in RECORDS)
    path.write_bytes(whole + torn)
    target = JsonlTarget(path)
    target.check()
    write(target, OPEN_AGAIN)
    target.close(1)
    assert path.read_bytes() == whole + OPEN_AGAIN.encode()


@pytest.mark.parametrize(
    "content", [b"import torch", b"import torch\n", b'{"ts_ms":1}\n# a note', b"\xff\xd8", b'{"loss":1}\n']
)
def test_a_file_that_holds_something_else_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "train.py"
    target = JsonlTarget(path)
    target.check()
    path.write_bytes(content)
    with pytest.raises(Rejected, match="holds something else than events"):
        target.check()
    with pytest.raises(OSError, match="holds something else than events"):  # it came after the check
        write(target, *RECORDS)
    assert path.read_bytes() == content


def test_bad_paths_are_refused_in_one_line(tmp_path):
    with pytest.raises(Rejected, match="missing is no directory: make it first"):
        JsonlTarget(tmp_path / "missing" / "run.jsonl").check()
    with pytest.raises(Rejected, match="it is a directory, and a file is wanted"):
        JsonlTarget(tmp_path).check()


def test_a_write_that_fails_half_way_is_taken_back_whole(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    target = JsonlTarget(path)
    write(target, *RECORDS)
    real, calls = os.write, []

    def full_disk(fd, data):
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(OSError, match="No space"):
        write(target, *RECORDS)
    assert path.read_bytes() == b"".join(event.encode() for event in RECORDS)


def test_a_full_disk_drops_the_file_and_the_run_goes_on(caplog):
    target = JsonlTarget(Path("/dev/full"))
    stream = EventStream([target])
    stream.open(OPEN_AGAIN)
    stream.metrics(0, lambda: [("loss", 1.0, {})])
    stream.done("my-run")
    summary = stream.close(timeout_s=60)
    assert summary.dropped == {"jsonl:/dev/full": {"not written": 3}}
    assert "/dev/full can no longer be written ([Errno 28] No space left on device)" in caplog.text


def pipe():
    reader, writer = os.pipe()
    return reader, PipeTarget("stdout", writer)


def test_a_pipe_gets_every_line_flushed_with_its_hand_over():
    reader, target = pipe()
    stream = EventStream([target])
    stream.open(OPEN_AGAIN)
    assert os.read(reader, 65_536) == OPEN_AGAIN.encode()
    stream.metrics(1, lambda: [("a", 1.0, {}), ("b", 2.0, {})])
    assert len(strict_lines(os.read(reader, 65_536))) == 2
    stream.done("my-run")
    stream.close(timeout_s=60)
    assert strict_lines(os.read(reader, 65_536))[0]["kind"] == "done"
    assert os.read(reader, 1) == b"", "the stream lets go of the pipe"
    os.close(reader)


def test_a_standard_output_that_does_not_wait_is_waited_for():
    """Whoever shares our standard output may have set O_NONBLOCK on it: a full pipe is then no failure."""
    reader, target = pipe()
    os.set_blocking(target._fd, False)
    big = Open(1, "my-run", "x" * 300_000, {})
    write(target, big)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(target.close, 60)
        received = b""
        while block := os.read(reader, 65_536):
            received += block
        closing.result()
    assert received == big.encode()
    assert not target.dropped
    os.close(reader)


def test_a_pipe_whose_reader_has_gone_is_dropped_and_every_event_counted(caplog):
    reader, target = pipe()
    os.close(reader)
    stream = EventStream([target])
    stream.open(OPEN_AGAIN)
    for step in range(5):
        stream.metrics(step, lambda: [("a", 1.0, {})])
    summary = stream.close(timeout_s=60)
    assert summary.dropped == {"stdout": {"not written": 6}}
    assert caplog.text.count("Broken pipe") == 1


def test_a_reader_that_stops_reading_holds_up_nothing(monkeypatch, caplog):
    monkeypatch.setattr("runtime.events.lines._PIPE_ROOM", 200_000)
    reader, target = pipe()
    stream = EventStream([target])
    for step in range(100):
        stream.annotate(step, "x" * 10_000, {})
    stream.sync(stream.mark())
    assert "can no longer be written" in caplog.text
    summary = stream.close(timeout_s=60)
    assert sum(summary.dropped["stdout"].values()) > 80
    received = read_until_closed_or_quiet(reader)
    assert len(received) <= 65_536 + 200_000
    os.close(reader)


def test_a_reader_that_never_reads_costs_at_most_the_timeout(caplog):
    reader, target = pipe()
    stream = EventStream([target])
    for step in range(20):
        stream.annotate(step, "x" * 10_000, {})
    summary = stream.close(timeout_s=0.05)
    assert summary.dropped["stdout"]["not written"] >= 13
    assert "its reader took nothing for" in caplog.text
    os.close(reader)


def test_a_slow_reader_gets_everything_in_order_and_whole():
    reader, target = pipe()
    stream = EventStream([target])
    received = []

    def slow_reader():
        while data := os.read(reader, 777):
            received.append(data)

    thread = threading.Thread(target=slow_reader)
    thread.start()
    for step in range(300):
        stream.annotate(step, "x" * 5_000, {})
    assert stream.close(timeout_s=60).dropped == {}
    thread.join()
    os.close(reader)
    assert [line["step"] for line in strict_lines(b"".join(received))] == list(range(300))


def read_until_closed_or_quiet(reader):
    os.set_blocking(reader, False)
    received = b""
    try:
        while data := os.read(reader, 65_536):
            received += data
    except BlockingIOError:
        pass
    return received


def test_a_run_that_failed_half_way_ends_its_file_with_done(tmp_path):
    path = tmp_path / "run.jsonl"
    stream = EventStream([JsonlTarget(path)])
    stream.open(OPEN_AGAIN)
    stream.fail(2, "ValueError: boom")
    stream.close(timeout_s=60)
    assert [line["kind"] for line in read(path)] == ["open", "annotation", "done"]
    assert read(path)[-1] == strict_lines(Done(read(path)[-1]["ts_ms"], "my-run").encode())[0]
