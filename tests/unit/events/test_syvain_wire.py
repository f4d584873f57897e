import json
from pathlib import Path

import msgspec
import pytest

from runtime.events.kinds import Annotation, Done, Event, Metric
from runtime.events.syvain.wire import decode_line, message, read_answers, spool_line, start_line

SESSION = "0123456789abcdef0123456789abcdef"
EXPERIMENT = "00000000-0000-4000-8000-000000000001"
CONTRACT = json.loads((Path(__file__).parents[2] / "contract" / "events" / "messages.json").read_text())
EVENTS: list[Event] = [
    Metric(1790189597015, 4, "eval/loss", 3.2047, {"split": "eval", "pass": "eval", "stage": "easy"}),
    Metric(1790189597016, 4, "odd name\\", -0.0, {}),
    Metric(1790189597017, 9007199254740990, "tiny", 5e-324, {"k": "é😀\0"}),
    Annotation(1790189597018, 4, "stage easy -> hard", {"from": "easy", "to": "hard"}),
    Annotation(1790189597019, 8, "x\ny", {"step": "ours is lost", "z": [1, {"a": None}]}),
    Done(1790189597020, "my-run"),
    Done(1790189597021, "my-run", error="ValueError: boom"),
    Done(1790189597022, "my-run", error="no kind \udcff"),
]


def lines():
    yield decode_line(start_line(SESSION, 1790189597000))
    for number, event in enumerate(EVENTS, 1):
        yield decode_line(spool_line(SESSION, number, event, event.encode()))


def test_messages_are_those_of_the_contract_byte_for_byte():
    sent = [message(line, EXPERIMENT, with_time=True).decode() for line in lines()]
    assert [json.loads(text) for text in sent] == CONTRACT["with_times"]
    assert sent == [
        json.dumps(item, separators=(",", ":"), ensure_ascii=False) for item in CONTRACT["with_times"]
    ]


def test_only_metrics_carry_their_time_to_a_server_that_takes_no_others():
    sent = [json.loads(message(line, EXPERIMENT, with_time=False)) for line in lines()]
    expected = [json.loads(json.dumps(item)) for item in CONTRACT["with_times"]]
    for item in expected:
        if not item["event"].endswith(".metric"):
            del item["data"]["timestampMs"]
    assert sent == expected


def test_a_spool_line_is_the_streams_line_with_its_number_before_it():
    event = EVENTS[0]
    assert spool_line(SESSION, 7, event, event.encode()) == (
        f'{{"session":"{SESSION}","sequence":7,'.encode() + event.encode()[1:]
    )


@pytest.mark.parametrize("line", [b"", b"{", b"{}", b'{"kind":"other"}', EVENTS[0].encode()])
def test_what_is_no_line_is_refused(line):
    with pytest.raises(msgspec.DecodeError):
        decode_line(line)


def test_an_experiment_id_is_quoted():
    line = next(lines())
    assert json.loads(message(line, 'a"b', with_time=False))["data"] == {"experimentId": 'a"b'}


def test_an_answer_is_found_by_its_correlation():
    replies = [
        {
            "correlationId": "b",
            "event": "syvain.v2.error",
            "data": {"code": "c", "message": "m", "status": 400},
        },
        {"correlationId": "a", "event": "syvain.v2.experiment.metricRecorded", "data": {}},
        {"correlationId": "z", "event": "syvain.v2.experiment.metricRecorded", "data": {}},
    ]
    answers = read_answers(json.dumps(replies).encode(), ["a", "b", "c"])
    assert answers["a"] is None
    error = answers["b"]
    assert error is not None
    assert (error.code, error.text, error.status, error.retryable) == ("c", "m", 400, False)
    assert set(answers) == {"a", "b"}
