"""What the server accepts: the wire's shared limits as refusals, and what only a server has to check."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from infra.server.refusals import Refused
from runtime.events import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "MAX_MESSAGE_ID_BYTES",
    "Partition",
    "check",
    "check_display_name",
    "check_error_parts",
    "check_folder_name",
    "check_message_id",
    "check_value",
    "compact_object",
    "partition",
]

V = TypeVar("V")

MAX_MESSAGE_ID_BYTES = 256


@dataclass(frozen=True, slots=True)
class Partition:
    """A metric name with its exact metadata map, as it is stored: compact JSON with sorted keys."""

    name: str
    metadata: str
    hash: bytes


def check(rule: Callable[[V], None], value: V) -> V:
    """Return a value that a rule of `runtime.events.limits` accepts; refuse the event otherwise."""
    try:
        rule(value)
    except ValueError as error:
        raise Refused("limit_exceeded", str(error)) from error
    return value


@lru_cache(maxsize=8192)
def partition(name: str, items: tuple[tuple[str, str], ...]) -> Partition:
    """Return the checked partition of a metric name and the items of its metadata, in any order.

    Raises:
        Refused: The name or the metadata passes a limit.
    """
    check(limits.check_metric_name, name)
    metadata = check(limits.check_metric_metadata, dict(items))
    text = orjson.dumps(metadata, option=orjson.OPT_SORT_KEYS)
    return Partition(name, text.decode(), hashlib.blake2b(text, digest_size=16).digest())


def check_value(value: float) -> float:
    """Refuse what is no number: it is never stored as another one."""
    if not math.isfinite(value):
        raise Refused("invalid_event", f"metricValue must be finite, got {value}: it was not stored")
    return value


def check_folder_name(name: str) -> None:
    """Refuse a folder's name unless it is 1 to 200 UTF-16 units without a slash, which separates a path.

    Raises:
        ValueError: It is not.
    """
    units = limits.utf16_units(name)
    if not 1 <= units <= 200 or "/" in name or not _is_text(name):
        raise ValueError(
            f"a folder's name must be 1 to 200 UTF-16 units without `/`, got {units}: {name[:60]!a}"
        )


def check_display_name(name: str) -> None:
    """Refuse an experiment's display name unless it is 1 to 200 UTF-16 units.

    Raises:
        ValueError: It is not.
    """
    units = limits.utf16_units(name)
    if not 1 <= units <= 200 or not _is_text(name):
        raise ValueError(f"a display name must be 1 to 200 UTF-16 units, got {units}: {name[:60]!a}")


def check_error_parts(parts: tuple[str, str]) -> None:
    """Refuse an error's name and detail unless they are at most 500 and 8,000 UTF-16 units.

    Raises:
        ValueError: They are not.
    """
    name, detail = (limits.utf16_units(part) for part in parts)
    if name > 500 or detail > limits.MAX_ERROR_UNITS:
        raise ValueError(
            f"an error's name and detail take at most 500 and {limits.MAX_ERROR_UNITS:,} UTF-16 units,"
            f" got {name:,} and {detail:,}"
        )


def check_message_id(message_id: str) -> str:
    """Refuse an id that is too long to remember."""
    size = len(message_id.encode())
    if not 1 <= size <= MAX_MESSAGE_ID_BYTES:
        raise Refused("limit_exceeded", f"messageId must be 1 to {MAX_MESSAGE_ID_BYTES} bytes, got {size}")
    return message_id


def compact_object(value: Mapping[str, Any], *, field: str) -> str:
    """Return the compact JSON of an object that may be stored with an experiment or an annotation.

    Clients measure it with numbers as JavaScript writes them (1.0 is 1): either form may meet the limit.
    An integer beyond 64 bits, such as a seed, is stored as the nearest double, as the collector sends it.

    Raises:
        Refused: The object is too large or nested too deeply, or holds what strict JSON cannot say.
    """
    text = _encoded(value, field)
    size = len(text)
    if limits.MAX_METADATA_BYTES < size <= 4 * limits.MAX_METADATA_BYTES:  # `-0.0,` is `0,` at best
        size = len(_encoded(_whole_floats(value), field))
    if size > limits.MAX_METADATA_BYTES:  # before its values are looked at, which may be many
        raise Refused(
            "limit_exceeded",
            f"{field} takes at most {limits.MAX_METADATA_BYTES:,} bytes of compact JSON, got {size:,}",
            details={"field": field, "size": size, "limit": limits.MAX_METADATA_BYTES},
        )
    check(partial(limits.check_nesting, field), value)
    _check_strict(value, field)
    return text.decode()


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(value: Mapping[str, Any], field: str) -> bytes:
    try:
        return limits.compact(value)
    except ValueError:
        check(partial(limits.check_nesting, field), value)
    try:
        return limits.compact(_with_doubles(value))
    except (ValueError, OverflowError) as error:
        raise Refused("invalid_event", f"{field}: {error}") from error


def _with_doubles(value: Any) -> Any:
    """Return what was decoded with a double in the place of every integer beyond 64 bits."""
    if isinstance(value, dict):
        return {key: _with_doubles(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_doubles(item) for item in value]
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


def _check_strict(value: Any, field: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused("invalid_event", f"{field} must hold finite numbers, got {value}")
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        _check_strict(item, field)


def _whole_floats(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value) if abs(value) < 2**63 else value
    if isinstance(value, dict):
        return {key: _whole_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_floats(item) for item in value]
    return value
