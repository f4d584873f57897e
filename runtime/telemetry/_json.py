"""One line of JSON, read strictly, but for what Python's own `json` writes and JSON does not have."""

from __future__ import annotations

import math
import re

import orjson

__all__ = ["MAX_DEPTH", "TooDeep", "read"]

MAX_DEPTH = 1_024
"""How deep objects and arrays nest together: orjson reads no deeper. Objects alone never do in 4 KiB."""

_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'  # a string that never ends reaches to the end: linear in time
    rb"|-?Infinity|NaN"
    rb"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)
_BRACKET_OR_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


class TooDeep(ValueError):
    """Objects and arrays nest deeper than `MAX_DEPTH`."""


def read(line: bytes) -> object:
    """Return the JSON value that `line` holds; NaN, infinities and numbers beyond any double are None.

    A byte-order mark before it is passed over. Of two equal keys in one object the last stands, at the place
    of the first. Integers are exact from -2^63 to 2^64 - 1; beyond that they are the nearest double.

    Raises:
        TooDeep: it nests too deeply.
        ValueError: it is not JSON, or not UTF-8.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return _read_leniently(line)


def _read_leniently(line: bytes) -> object:
    # Whatever is replaced stays a token that is valid in the same places only, so nothing that is not JSON
    # becomes JSON.
    mended = _TOKEN.sub(_mend, line.removeprefix(_BOM))
    if _depth(mended) > MAX_DEPTH:
        raise TooDeep(f"JSON nests at most {MAX_DEPTH:,} deep")
    return orjson.loads(mended)


def _mend(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if token[:1] == b'"':
        return _ESCAPE.sub(_mend_escape, token) if b"\\u" in token else token
    if token[-1:] in b"yN" or math.isinf(float(token)):
        return b"null"
    return token


def _mend_escape(match: re.Match[bytes]) -> bytes:
    # Half a surrogate pair, which Python writes for text that was no Unicode. As plain characters it is in no
    # key that is kept, and two different ones stay different.
    return b"\\" + match[0] if len(match[1]) > 1 else match[0]


def _depth(line: bytes) -> int:
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for match in _BRACKET_OR_STRING.finditer(line):
        bracket = match[0]
        if bracket in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in (b"]", b"}"):
            depth -= 1
    return deepest
