"""What a field of an experiment may hold. Every refusal is one line in the same form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from runtime.errors import Rejected
from runtime.events.limits import MAX_METRIC_VALUE_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_INT = 2**63 - 1
"""The largest integer that every reader of the identity holds exactly as JSON."""


def shown(value: object) -> str:
    """Return `value` as an error shows it: one line, at most 80 characters."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - the repr is the user's code; an error text must not fail
        text = with_article(type(value).__name__)
    return text if len(text) <= 80 else text[:77] + "..."


def check_integer(field: str, value: object, *, at_least: int, note: str = "") -> None:
    """Refuse what is no integer from `at_least` to 2^63-1. A bool is no integer here."""
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= MAX_INT:
        raise Rejected(
            f"{field} must be an integer, at least {at_least}, got {shown(value)}{note and ': ' + note}"
        )


def check_optional_integer(field: str, value: object, *, at_least: int, unset: str) -> None:
    """Like `check_integer`, with None for `unset`."""
    if value is not None:
        check_integer(field, value, at_least=at_least, note=f"None means {unset}")


def is_finite(value: object) -> bool:
    """Say whether `value` is an int or float, no bool, and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_name(field: str, value: object) -> None:
    """Refuse what cannot be the value of a metadata key: empty, too long, or not Unicode."""
    if not isinstance(value, str) or not value:
        raise Rejected(f"{field} must be a non-empty string, got {shown(value)}")
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:
        raise Rejected(f"{field} must be valid Unicode, got a lone surrogate in {shown(value)}") from None
    if size_bytes > MAX_METRIC_VALUE_BYTES:
        raise Rejected(f"{field} must be at most {MAX_METRIC_VALUE_BYTES} bytes long, got {size_bytes}")


def check_one_of(field: str, value: object, accepted: Collection[str]) -> None:
    """Refuse what is none of the strings in `accepted`."""
    if not isinstance(value, str) or value not in accepted:
        raise Rejected(f"{field} must be one of {', '.join(accepted)}, got {shown(value)}")


def check_callable(field: str, value: object, signature: str) -> None:
    """Refuse what cannot be called; `signature` says how it will be."""
    if not callable(value) or isinstance(value, type):
        raise Rejected(f"{field} must be a function {signature}, got {shown(value)}")


def check_loader(field: str, value: Any) -> None:
    """Refuse what has no method `batch`."""
    if isinstance(value, type) or not callable(getattr(value, "batch", None)):
        raise Rejected(f"{field} must be a loader with a method batch(index) -> Batch, got {shown(value)}")


def check_instance(field: str, value: object, accepted: type, note: str = "") -> None:
    """Refuse what is no instance of `accepted`."""
    if not isinstance(value, accepted):
        wanted = with_article(accepted.__name__)
        raise Rejected(f"{field} must be {wanted}, got {shown(value)}{note and ': ' + note}")


def with_article(noun: str) -> str:
    """Return `noun` with the indefinite article that its first letter asks for."""
    return f"an {noun}" if noun[:1] in "AEIOUaeiou" else f"a {noun}"
