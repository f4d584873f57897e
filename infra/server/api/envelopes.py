"""The envelope of the v2 protocol: arrays of events in, arrays of replies of equal length and order out."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import orjson

from infra.server.refusals import Refused
from runtime.events import limits

__all__ = [
    "Answer",
    "Envelope",
    "Reply",
    "check_size",
    "convert",
    "decode_answerable",
    "decode_batch",
    "decode_loosely",
    "encode_mixed",
    "encode_replies",
    "error_data",
    "reply_line",
    "with_double",
]

T = TypeVar("T")
Answer = tuple[str, Mapping[str, Any]]
"""The name of a reply event without its prefix, and its data."""
Reply = tuple[str, Mapping[str, Any] | orjson.Fragment] | Refused
"""An answer, its data perhaps encoded already; or why there is none."""

_PREFIX = "syvain.v2."
_MAX_DIGITS = 20
"""Of an integer of 64 bits, with its sign."""
_LONG = re.compile(rb"[0-9]{19}")
"""Fewer digits fit into 64 bits."""
_PLAIN = re.compile(r"[ !#-\[\]-~]*")
"""Texts that JSON writes as they are."""


class Envelope(msgspec.Struct, Generic[T]):
    """One event as it is sent."""

    messageId: str  # noqa: N815 - the wire's name
    event: str
    data: T


def decode_batch(body: bytes, decoder: msgspec.json.Decoder[list[T]]) -> list[T | dict[str, Any]]:
    """Decode a batch; where any event does not fit, every event comes as a plain dict, to be refused alone.

    Raises:
        Refused: The body is no array of 0 to 1,000 objects that can be answered one by one.
    """
    try:
        events: list[T | dict[str, Any]] = [*decoder.decode(body)]
    except (msgspec.DecodeError, RecursionError):
        return [*decode_answerable(body)]
    check_size(events)
    return events


def decode_answerable(body: bytes) -> list[dict[str, Any]]:
    """Decode a batch in which some event may not fit: every event comes as a dict, to be refused alone.

    Raises:
        Refused: The body is no array of 0 to 1,000 objects that can be answered one by one.
    """
    events = _answerable(decode_loosely(body))
    check_size(events)
    return events


def check_size(events: Sequence[object]) -> None:
    """Refuse a batch of too many events.

    Raises:
        Refused: They are more than 1,000.
    """
    if len(events) > limits.MAX_BATCH_EVENTS:
        raise Refused(
            "batch_too_large", f"a batch has at most {limits.MAX_BATCH_EVENTS:,} events, got {len(events):,}"
        )


def decode_loosely(body: bytes) -> Any:
    """Decode JSON that may hold NaN, infinities and lone surrogates, so that one such value costs one event.

    Raises:
        Refused: It is no JSON even so.
    """
    try:
        # The C decoder calls Python for every integer then: only where one may be too long for 64 bits.
        return json.loads(body, parse_int=_integer if _LONG.search(body) else None)
    except (ValueError, RecursionError) as error:
        raise Refused("malformed_request", f"the body is not JSON: {error}") from error


def _integer(text: str) -> float:
    """Return an integer of 64 bits, or the double nearest to a larger one, which may be infinite."""
    number = int(text) if len(text) <= _MAX_DIGITS else None
    return number if number is not None and -(2**63) <= number < 2**64 else float(text)


def convert(decoded: Any, kind: type[T]) -> T:
    """Return what was decoded loosely as a `kind`.

    Raises:
        msgspec.ValidationError: It does not fit.
        Refused: It holds a lone surrogate or a number too large: nothing could store it or answer with it.
    """
    try:
        converted = msgspec.convert(decoded, kind)
        limits.compact(msgspec.to_builtins(converted))  # a field that nobody reads may hold anything
    except msgspec.ValidationError:
        raise
    except (ValueError, RecursionError) as error:
        raise Refused("invalid_event", str(error)) from error
    return converted


def with_double(fields: Any, name: str) -> None:
    """Make a double of an integer that stands where one belongs: JavaScript writes 1e20 with its zeros."""
    if isinstance(fields, dict) and type(value := fields.get(name)) is int:
        try:
            fields[name] = float(value)
        except OverflowError:
            fields[name] = math.inf


def encode_replies(correlations: Sequence[str], replies: Sequence[Reply]) -> bytes:
    """Return the reply array, a reply to each event in order."""
    return encode_mixed(correlations, "", dict(enumerate(replies)))


def encode_mixed(correlations: Sequence[str], usual: str, unusual: Mapping[int, Reply]) -> bytes:
    """Return the reply array: those in `unusual` by place, and `usual` without data to all others.

    Reply ids are unique; nobody asks for more of them.
    """
    first = uuid.uuid4().hex[:20]
    tail = f'","event":"{_PREFIX}{usual}","data":{{}}}}'
    if _PLAIN.fullmatch("".join(correlations)) is None:
        correlations = [orjson.dumps(correlation).decode()[1:-1] for correlation in correlations]
    parts = [
        f'{{"messageId":"{first}.{place}","correlationId":"{correlation}{tail}'
        for place, correlation in enumerate(correlations)
    ]
    for place, reply in unusual.items():
        event, data = _event_and_data(reply)
        head = f'{{"messageId":"{first}.{place}","correlationId":"{correlations[place]}"'
        parts[place] = f'{head},"event":"{event}","data":{orjson.dumps(data).decode()}}}'
    return f"[{','.join(parts)}]".encode()


def reply_line(correlation: str, reply: Reply) -> bytes:
    """Return one reply as a line of a stream."""
    return orjson.dumps(_reply(correlation, reply), option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def error_data(refusal: Refused) -> dict[str, Any]:
    """Return the data of an error reply."""
    data: dict[str, Any] = {
        "code": refusal.code,
        "message": refusal.message,
        "status": refusal.status,
        "retryable": refusal.retryable,
    }
    if refusal.retry_after_s is not None:
        data["retryAfterMs"] = refusal.retry_after_s * 1000
    if refusal.details:
        data["details"] = refusal.details
    return data


def _reply(correlation: str, reply: Reply) -> dict[str, Any]:
    event, data = _event_and_data(reply)
    return {"correlationId": correlation, "event": event, "data": data}


def _event_and_data(reply: Reply) -> tuple[str, Mapping[str, Any] | orjson.Fragment]:
    if isinstance(reply, Refused):
        return _PREFIX + "error", error_data(reply)
    return _PREFIX + reply[0], reply[1]


def _answerable(events: Any) -> list[dict[str, Any]]:
    if not isinstance(events, list):
        raise Refused(
            "malformed_request", f"the body must be an array of events, got {type(events).__name__}"
        )
    for index, event in enumerate(events):
        if not isinstance(event, dict) or not isinstance(event.get("messageId"), str):
            raise Refused("malformed_request", f"event {index} must be an object with a messageId")
        try:
            event["messageId"].encode()
        except UnicodeEncodeError as error:
            raise Refused(
                "malformed_request", f"the messageId of event {index} has a lone surrogate"
            ) from error
    return events
