"""infra.metrics.event_file: a file is read as its attempts, strictly, and its lines keep their numbers."""

import pytest

from infra.client.errors import Rejected
from infra.metrics.event_file import EventFile
from runtime.events.kinds import Annotation, Done, Event, Metric, Open
from runtime.events.syvain import wire

OPEN = Open(1_000, "run", "a run", {"knobs": {"lr": 0.1}})
EVENTS: list[Event] = [
    Metric(1_001, 0, "loss", 2.5, {"split": "train"}),
    Annotation(1_002, 1, "checkpoint here", {"checkpoint": "here"}),
    Metric(1_003, 1, "loss", float("nan"), {}),
]


def written(path, *events):
    path.write_bytes(b"".join(event.encode() for event in events))
    return EventFile(path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def test_an_open_begins_an_attempt_and_what_follows_is_its(path):
    file = written(path, OPEN, *EVENTS, Done(1_004, "run"), OPEN, EVENTS[0])
    first, second = file.attempts
    assert (first.slug, first.description, first.metadata, first.ts_ms) == (
        "run",
        "a run",
        {"knobs": {"lr": 0.1}},
        1_000,
    )
    assert [event.sequence for event in file.events(first)] == [1, 2, 3]
    assert isinstance(first.ended, wire.DoneLine)
    assert first.ended.sequence == 4
    assert [event.ts_ms for event in file.events(second)] == [1_001]
    assert second.ended is None
    assert first.names == {"loss"}


def test_a_line_has_the_same_id_wherever_the_file_lies_and_however_it_grew(path, tmp_path):
    file = written(path, OPEN, *EVENTS)
    grown = written(tmp_path / "copy.jsonl", OPEN, *EVENTS, *EVENTS, OPEN)
    ids = [event.message_id for event in file.events(file.attempts[0])]
    assert [event.message_id for event in grown.events(grown.attempts[0])][:3] == ids


def test_equal_opens_are_attempts_of_their_own(path):
    file = written(path, OPEN, OPEN)
    assert len({attempt.session for attempt in file.attempts}) == 2


def test_a_run_that_failed_ends_with_its_error(path):
    failed = Annotation(1_005, 2, "failed: ValueError: no", {"error": "ValueError: no"})
    file = written(path, OPEN, failed, Done(1_006, "run"))
    ended = file.attempts[0].ended
    assert isinstance(ended, wire.ErrorLine)
    assert (ended.error, ended.ts_ms, ended.sequence) == ("ValueError: no", 1_006, 2)


def test_a_torn_last_line_is_left_out_and_counted(path):
    whole = OPEN.encode() + EVENTS[0].encode()
    for num_bytes in range(1, len(EVENTS[1].encode())):
        path.write_bytes(whole + EVENTS[1].encode()[:num_bytes])
        file = EventFile(path)
        assert file.num_torn_bytes == num_bytes
        assert [event.sequence for event in file.events(file.attempts[0])] == [1]


def test_what_is_appended_later_is_not_read(path):
    file = written(path, OPEN, EVENTS[0])
    with path.open("ab") as more:
        more.write(EVENTS[1].encode())
    assert len(list(file.events(file.attempts[0]))) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no event: name a file that a run wrote with --metrics jsonl:PATH"),
        (EVENTS[0].encode(), ":1: the first line must be an open"),
        (OPEN.encode() + b"hello\n" + EVENTS[0].encode(), ":2 is no event: "),
        (OPEN.encode() + b'{"ts_ms":1,"kind":"other"}\n', ":2 is no event: "),
        (OPEN.encode() + b'{"ts_ms":1,"step":"x","kind":"metric"}\n', ":2 is no event: "),
        (b'{"ts_ms":1,"kind":"open"}\n', ":1 is no event: "),
        (b"\0\0\0\n", ":1 is no event: "),
    ],
)
def test_what_is_no_file_of_events_is_refused_with_its_line(path, content, says):
    path.write_bytes(content)
    with pytest.raises(Rejected) as refused:
        EventFile(path)
    assert str(path) in str(refused.value)
    assert says in str(refused.value)


def test_a_file_that_is_not_there_is_refused(path):
    with pytest.raises(Rejected, match="No such file"):
        EventFile(path)
