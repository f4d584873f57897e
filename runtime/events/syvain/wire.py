"""Protocol v2 as bytes: from the spool's lines to the messages of a request, and from a reply to its answers.

A line of the spool, and of a segment, is a line of the stream with a session and a sequence before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import orjson
from msgspec import Raw

from runtime.events import limits
from runtime.events.kinds import Done, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AnnotationLine",
    "DoneLine",
    "ErrorLine",
    "EventError",
    "Line",
    "MetricLine",
    "StartLine",
    "decode_line",
    "line_head",
    "message",
    "messages",
    "read_answers",
    "read_error",
    "spool_line",
    "start_line",
]

_ERROR = "syvain.v2.error"
_TRANSIENT = {408, 425, 429}


class _Kept(msgspec.Struct, frozen=True):
    session: str
    sequence: int
    ts_ms: int

    @property
    def message_id(self) -> str:
        return f"{self.session}.{self.sequence}"


class MetricLine(_Kept, frozen=True, tag_field="kind", tag="metric", gc=False):
    """A number; what is only passed on stays as it was written."""

    step: int
    name: Raw
    value: Raw
    metadata: Raw


class AnnotationLine(_Kept, frozen=True, tag_field="kind", tag="annotation"):
    """A text at a step."""

    step: int
    annotation: Raw
    metadata: dict[str, Any]


class StartLine(_Kept, frozen=True, tag_field="kind", tag="start"):
    """The experiment runs. It follows every open and is the heartbeat: what is sent twice is stored once."""


class DoneLine(_Kept, frozen=True, tag_field="kind", tag="done"):
    """The run finished."""


class ErrorLine(_Kept, frozen=True, tag_field="kind", tag="error"):
    """The run failed."""

    error: str


Line: TypeAlias = MetricLine | AnnotationLine | StartLine | DoneLine | ErrorLine

_lines = msgspec.json.Decoder(Line)


def spool_line(session: str, sequence: int, event: Event, line: bytes) -> bytes:
    """Return the spool's line of an event whose line of the stream is `line`; both end in a line feed."""
    if isinstance(event, Done) and event.error is not None:
        text = limits.cut_units(event.error, limits.MAX_ERROR_UNITS) or "failed"
        text = text.encode("utf-8", "backslashreplace").decode()
        line = orjson.dumps({"ts_ms": event.ts_ms, "kind": "error", "error": text}) + b"\n"
    return b"%b%d,%b" % (line_head(session), sequence, line[1:])


def line_head(session: str) -> bytes:
    """Return what stands before the number in every line of a session."""
    return b'{"session":"%b","sequence":' % session.encode()


def start_line(session: str, ts_ms: int) -> bytes:
    """Return the line of an attempt's start: number 0 of its session."""
    return b'{"session":"%b","sequence":0,"ts_ms":%d,"kind":"start"}' % (session.encode(), ts_ms)


def decode_line(line: bytes) -> Line:
    """Return what a line of the spool holds. Raises `msgspec.DecodeError` for anything else."""
    return _lines.decode(line)


def message(line: Line, experiment_id: str, *, with_time: bool) -> bytes:
    """Return the message that tells Metrics of a line.

    `with_time` sends the times of annotations and of lifecycle events too: only a server that said so takes
    them.
    """
    experiment = orjson.dumps(experiment_id)
    if isinstance(line, MetricLine):
        name, data = (
            b"metric",
            b'"timestampMs":%d,"step":%d,"metricName":%b,"metricValue":%b,"meta":%b'
            % (
                line.ts_ms,
                line.step,
                line.name,
                line.value,
                line.metadata,
            ),
        )
    else:
        name, data = _slow_message(line)
        if with_time:
            data = b'"timestampMs":%d%b%b' % (line.ts_ms, b"," if data else b"", data)
    return b'{"messageId":"%b","event":"syvain.v2.experiment.%b","data":{"experimentId":%b%b%b}}' % (
        line.message_id.encode(),
        name,
        experiment,
        b"," if data else b"",
        data,
    )


def messages(lines: Sequence[Line], experiment_id: str, *, with_time: bool) -> list[bytes]:
    """Return the message of each line, as `message` does; metrics, which are nearly all, at half the time."""
    fields = orjson.dumps(experiment_id).replace(b"%", b"%%")
    metric = (
        b'{"messageId":"%b.%d","event":"syvain.v2.experiment.metric","data":{"experimentId":' + fields + b","
        b'"timestampMs":%d,"step":%d,"metricName":%b,"metricValue":%b,"meta":%b}}'
    )
    return [
        metric
        % (line.session.encode(), line.sequence, line.ts_ms, line.step, line.name, line.value, line.metadata)
        if type(line) is MetricLine
        else message(line, experiment_id, with_time=with_time)
        for line in lines
    ]


def _slow_message(line: AnnotationLine | StartLine | DoneLine | ErrorLine) -> tuple[bytes, bytes]:
    if isinstance(line, AnnotationLine):
        meta = orjson.dumps({**line.metadata, "step": line.step}, option=orjson.OPT_SORT_KEYS)
        return b"annotate", b'"annotation":%b,"meta":%b' % (line.annotation, meta)
    if isinstance(line, ErrorLine):
        kind = re.match(r"([\w.]+):", line.error)
        meta = orjson.dumps({"error_type": kind[1]} if kind else {})
        return b"error", b'"error":%b,"meta":%b' % (orjson.dumps(line.error), meta)
    return (b"start" if isinstance(line, StartLine) else b"done"), b""


@dataclass(frozen=True, slots=True)
class EventError:
    """Why Metrics did not take one event. `retry_after_s` unset means whenever we like."""

    code: str
    text: str
    status: int | None
    retryable: bool
    retry_after_s: float | None = None


def read_answers(body: bytes, message_ids: Sequence[str]) -> dict[str, EventError | None]:
    """Return the answer to each message that has one: unset means taken. The order does not matter.

    Raises:
        ValueError: the body is no JSON.
    """
    if _all_taken(body, message_ids):
        return dict.fromkeys(message_ids)
    replies = orjson.loads(body)
    wanted = set(message_ids)
    answers: dict[str, EventError | None] = {}
    for reply in replies if isinstance(replies, list) else ():
        message_id = reply.get("correlationId") if isinstance(reply, dict) else None
        if isinstance(message_id, str) and message_id in wanted:
            answers[message_id] = read_error(reply.get("data")) if reply.get("event") == _ERROR else None
    return answers


class _Reply(msgspec.Struct, gc=False):
    correlationId: str  # noqa: N815 (the wire's name)
    event: str


_replies = msgspec.json.Decoder(list[_Reply])


def _all_taken(body: bytes, message_ids: Sequence[str]) -> bool:
    """Whether the body answers every message, in order, and none with an error. False is no answer yet."""
    try:
        replies = _replies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    if [reply.correlationId for reply in replies] != list(message_ids):
        return False
    return _ERROR not in {reply.event for reply in replies}


def read_error(data: object) -> EventError:
    """Read an error leniently: its own word on a retry counts, else its status; with neither it is one."""
    fields: dict[str, Any] = data if isinstance(data, dict) else {}
    status, retryable, after_ms = (fields.get(key) for key in ("status", "retryable", "retryAfterMs"))
    status = status if type(status) is int else None
    if not isinstance(retryable, bool):
        retryable = status is None or status in _TRANSIENT or status >= 500
    wait = after_ms / 1000 if isinstance(after_ms, int | float) and after_ms >= 0 else None
    code = str(fields.get("code") or status or "no code")
    return EventError(code, str(fields.get("message") or ""), status, retryable, wait)
