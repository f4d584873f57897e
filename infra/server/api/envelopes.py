"""The envelope of the v2 protocol: arrays of events in, arrays of replies of equal length and order out."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import orjson

from infra.server.refusals import Refused
from runtime.events import limits

__all__ = [
    "Envelope",
    "Reply",
    "convert",
    "decode_batch",
    "decode_loosely",
    "encode_replies",
    "error_data",
    "reply_line",
]

T = TypeVar("T")
Reply = tuple[str, Mapping[str, Any]] | Refused
"""The name of the reply event without its prefix, and its data; or why there is none."""

_PREFIX = "syvain.v2."


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
    events: list[T | dict[str, Any]]
    try:
        events = [*decoder.decode(body)]
    except (msgspec.DecodeError, RecursionError):
        events = [*_answerable(decode_loosely(body))]
    if len(events) > limits.MAX_BATCH_EVENTS:
        raise Refused(
            "batch_too_large", f"a batch has at most {limits.MAX_BATCH_EVENTS:,} events, got {len(events):,}"
        )
    return events


def decode_loosely(body: bytes) -> Any:
    """Decode JSON that may hold NaN, infinities and lone surrogates, so that one such value costs one event.

    Raises:
        Refused: It is no JSON even so.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("malformed_request", f"the body is not JSON: {error}") from error


def convert(decoded: Any, kind: type[T]) -> T:
    """Return what was decoded loosely as a `kind`.

    Raises:
        msgspec.ValidationError: It does not fit.
        Refused: It holds a lone surrogate or a number too large: nothing could store it or answer with it.
    """
    try:
        limits.compact(decoded)
    except ValueError as error:
        raise Refused("invalid_event", str(error)) from error
    return msgspec.convert(decoded, kind)


def encode_replies(correlations: Sequence[str], replies: Sequence[Reply]) -> bytes:
    """Return the reply array. Reply ids are unique; nobody asks for more of them."""
    first = str(uuid.uuid4())[:24]
    return (
        b"["
        + b",".join(
            [
                orjson.dumps({"messageId": f"{first}{index:012x}", **_reply(correlation, reply)})
                for index, (correlation, reply) in enumerate(zip(correlations, replies, strict=True))
            ]
        )
        + b"]"
    )


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
    if isinstance(reply, Refused):
        return {"correlationId": correlation, "event": _PREFIX + "error", "data": error_data(reply)}
    return {"correlationId": correlation, "event": _PREFIX + reply[0], "data": reply[1]}


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
