"""What the Metrics wire accepts. Pure functions that raise `ValueError`; shared by the run and by the server.

Lengths of texts are counted in UTF-16 units, as JavaScript counts them; sizes in UTF-8 bytes of compact JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import orjson

__all__ = [
    "MAX_ANNOTATION_UNITS",
    "MAX_BATCH_EVENTS",
    "MAX_DESCRIPTION_UNITS",
    "MAX_ERROR_UNITS",
    "MAX_METADATA_BYTES",
    "MAX_METRIC_VALUE_BYTES",
    "MAX_NESTING",
    "MAX_SLUG_UNITS",
    "MAX_STEP",
    "MAX_TIMESTAMP_MS",
    "check_annotation",
    "check_description",
    "check_error",
    "check_metric",
    "check_metric_metadata",
    "check_metric_name",
    "check_nesting",
    "check_slug",
    "check_step",
    "check_timestamp_ms",
    "compact",
    "cut_lines",
    "cut_units",
    "utf16_units",
]

MAX_SLUG_UNITS = 200
MAX_DESCRIPTION_UNITS = 4_000
MAX_ANNOTATION_UNITS = 16_000
MAX_ERROR_UNITS = 8_000
MAX_METADATA_BYTES = 65_536
"""Of an experiment's and of an annotation's metadata as compact JSON; an annotation's includes its `step`."""
MAX_NESTING = 128
"""How deep metadata nests: what the most generous of the public clients lets through."""
MAX_METRIC_VALUE_BYTES = 512
"""Of one value of a metric's metadata, such as the name of a stage."""
MAX_STEP = 2**53 - 2
MAX_TIMESTAMP_MS = 2**53 - 1
MAX_BATCH_EVENTS = 1_000

_MAX_NAME_BYTES = 256
_MAX_NAME_IN_URL = 512
_MAX_METRIC_KEYS = 32
_MAX_METRIC_KEY_BYTES = 128
_MAX_METRIC_METADATA_BYTES = 4_096

_PRINTABLE = re.compile(r"[ -~]+")
_ESCAPED_IN_URL = re.compile(r"[^A-Za-z0-9\-._~]")


def check_metric(name: str, metadata: Mapping[str, str]) -> None:
    """Refuse a metric that the wire would not take. Callers on a hot path remember what passed.

    Raises:
        ValueError: the name, a key, a value or the whole of the metadata is out of bounds.
    """
    check_metric_name(name)
    check_metric_metadata(metadata)


def check_metric_name(name: str) -> None:
    """Refuse a metric's name unless it is 1 to 256 printable ASCII characters that fit a URL of 512."""
    _check_text("a metric's name", name)
    if len(name) > _MAX_NAME_BYTES or not _PRINTABLE.fullmatch(name):
        raise ValueError(
            f"a metric's name must be 1 to {_MAX_NAME_BYTES} printable ASCII characters, got {_short(name)}"
            f" of {len(name)}"
        )
    in_url = 1 + len(name) + 2 * len(_ESCAPED_IN_URL.findall(name))
    if in_url > _MAX_NAME_IN_URL:
        raise ValueError(
            f"a metric's name must take at most {_MAX_NAME_IN_URL} characters in a URL (three for each but"
            f" letters, digits and -._~), got {in_url}: {_short(name)}"
        )


def check_metric_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse a metric's metadata unless it maps at most 32 short texts to short texts, 4,096 bytes in all."""
    if len(metadata) > _MAX_METRIC_KEYS:
        raise ValueError(f"a metric's metadata takes at most {_MAX_METRIC_KEYS} keys, got {len(metadata)}")
    for key, value in metadata.items():
        _check_bytes("a key of a metric's metadata", key, _MAX_METRIC_KEY_BYTES)
        _check_bytes(f"metadata {_short(key)} of a metric", value, MAX_METRIC_VALUE_BYTES)
    size = len(orjson.dumps(dict(metadata)))
    if size > _MAX_METRIC_METADATA_BYTES:
        raise ValueError(
            f"a metric's metadata takes at most {_MAX_METRIC_METADATA_BYTES:,} bytes of JSON, got {size:,}"
        )


def check_step(step: int) -> None:
    """Refuse a step that is no integer from 0 to 2^53 - 2."""
    _check_integer("a step", step, MAX_STEP)


def check_timestamp_ms(timestamp_ms: int) -> None:
    """Refuse a time that is no integer of milliseconds from 0 to 2^53 - 1."""
    _check_integer("a time in milliseconds", timestamp_ms, MAX_TIMESTAMP_MS)


def check_slug(slug: str) -> None:
    """Refuse a slug unless it is 1 to 200 UTF-16 units of valid text."""
    _check_units("a slug", slug, least=1, most=MAX_SLUG_UNITS)


def check_description(description: str) -> None:
    """Refuse a description of more than 4,000 UTF-16 units."""
    _check_units("a description", description, least=0, most=MAX_DESCRIPTION_UNITS)


def check_annotation(text: str) -> None:
    """Refuse an annotation's text unless it is 1 to 16,000 UTF-16 units."""
    _check_units("an annotation", text, least=1, most=MAX_ANNOTATION_UNITS)


def check_error(text: str) -> None:
    """Refuse an error's text unless it is 1 to 8,000 UTF-16 units."""
    _check_units("an error", text, least=1, most=MAX_ERROR_UNITS)


def check_nesting(what: str, value: object) -> None:
    """Refuse mappings and lists that nest deeper than 128; the error calls them `what`."""
    depth, level = 0, [value]
    while level := [inner for item in level for inner in _inside(item)]:
        depth += 1
        if depth > MAX_NESTING:
            raise ValueError(f"{what} nests at most {MAX_NESTING} deep, got more")


def utf16_units(text: str) -> int:
    """Return how many UTF-16 units `text` takes: one a character, two for those beyond U+FFFF."""
    return len(text) if text.isascii() else len(text) + sum(character > "\uffff" for character in text)


def cut_units(text: str, units: int) -> str:
    """Return the longest beginning of `text` of at most `units` UTF-16 units; never half a character."""
    if utf16_units(text) <= units:
        return text
    encoded = text.encode("utf-16-le", "surrogatepass")[: 2 * units]
    if encoded and 0xD8 <= encoded[-1] <= 0xDB:  # the first half of a pair, its second half cut off
        encoded = encoded[:-2]
    return encoded.decode("utf-16-le", "surrogatepass")


def cut_lines(text: str, units: int) -> str:
    """Return `text` in at most `units` UTF-16 units; `... <n> more lines` stands for lines cut off its end.

    A first line that is too long by itself is cut and ends in `...`.
    """
    if utf16_units(text) <= units:
        return text
    lines = text.split("\n")
    room = units - (len(f"\n... {len(lines)} more lines") if len(lines) > 1 else 0)
    kept, used = 0, -1  # the first line has no line feed before it
    for line in lines:
        used += 1 + utf16_units(line)
        if used > room:
            break
        kept += 1
    head = lines[:kept] or [cut_units(lines[0], room - 3) + "..."]
    more = len(lines) - len(head)
    return "\n".join([*head, f"... {more} more lines"] if more else head)


def compact(value: object) -> bytes:
    """Return `value` as compact JSON in UTF-8, non-ASCII characters as they are.

    Raises:
        ValueError: a lone surrogate, an integer beyond 64 bits, a key that is no text, or no JSON at all.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise ValueError(f"{_short(value)} is not JSON: {error}") from error


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _check_integer(what: str, value: int, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{what} must be an integer from 0 to {most}, got {_short(value)}")


def _check_text(what: str, value: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be text, got {_short(value)}")  # noqa: TRY004 (one error for every limit)


def _check_units(what: str, text: str, *, least: int, most: int) -> None:
    _check_text(what, text)
    units = utf16_units(text)
    if not least <= units <= most:
        raise ValueError(
            f"{what} must be {least} to {most:,} UTF-16 units long, got {units:,}: {_short(text)}"
        )
    _utf8(what, text)


def _check_bytes(what: str, text: str, most: int) -> None:
    _check_text(what, text)
    size = len(_utf8(what, text))
    if size > most:
        raise ValueError(f"{what} takes at most {most} bytes, got {size}: {_short(text)}")


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} must be valid Unicode, got a lone surrogate: {_short(text)}") from error


def _short(value: object) -> str:
    try:
        shown = ascii(value)
    except RecursionError:
        shown = f"a {type(value).__name__} that nests too deeply"
    return shown if len(shown) <= 60 else shown[:57] + "..."
