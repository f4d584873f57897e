"""The patterns of `.gitignore` as regular expressions: what `*`, `**`, `?` and `[...]` fit."""

from __future__ import annotations

import re

__all__ = ["expression"]

SPECIAL = b"*?[\\"
ASCII = {
    b"alnum": rb"[0-9A-Za-z]",
    b"alpha": rb"[A-Za-z]",
    b"blank": rb"[ \t]",
    b"cntrl": rb"[\x00-\x1f\x7f]",
    b"digit": rb"[0-9]",
    b"graph": rb"[\x21-\x7e]",
    b"lower": rb"[a-z]",
    b"print": rb"[\x20-\x7e]",
    b"punct": rb"[\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e]",
    b"space": rb"[ \t-\r]",
    b"upper": rb"[A-Z]",
    b"xdigit": rb"[0-9A-Fa-f]",
}


def expression(glob: bytes, *, by_name: bool) -> re.Pattern[bytes] | None:
    """Return what a pattern fits, whole; None: it is broken, and fits nothing.

    `by_name`: it is held against a name, which has no slash, else against a path, in which only `**` crosses
    one.

    Source: git's wildmatch.c, on bytes as there.
    """
    if not glob:
        return None
    out: list[bytes] = []
    at = 0
    while at < len(glob):
        match glob[at : at + 1]:
            case b"*":
                found: tuple[bytes, int] | None = _stars(glob, at, by_name=by_name)
            case b"?":
                found = b"[^/]", at + 1
            case b"[":
                found = _bracket(glob, at + 1)
            case b"\\":
                found = (re.escape(glob[at + 1 : at + 2]), at + 2) if at + 1 < len(glob) else None
            case plain:
                found = re.escape(plain), at + 1
        if found is None:
            return None
        out.append(found[0])
        at = found[1]
    return re.compile(b"".join(out), re.DOTALL)


def _stars(glob: bytes, at: int, *, by_name: bool) -> tuple[bytes, int]:
    end = at
    while glob[end : end + 1] == b"*":
        end += 1
    if by_name or end - at == 1:
        return b"[^/]*", end
    # Plain text at the beginning is compared by itself: what follows it is a beginning, too.
    begins = at == _plain_length(glob) or glob[at - 1 : at] == b"/"
    if begins and glob[end : end + 1] == b"/":
        return b"(?:.*/)?", end + 1
    if begins and (end == len(glob) or glob[end : end + 2] == b"\\/"):
        return b".*", end
    return b"[^/]*", end


def _plain_length(glob: bytes) -> int:
    return next((at for at, byte in enumerate(glob) if byte in SPECIAL), len(glob))


def _bracket(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """Translate what follows a `[`; None: it has no end, or names a class that is none."""
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    before: int | None = None
    first = True
    while first or glob[at : at + 1] != b"]":
        first = False
        found = _member(glob, at, before)
        if found is None:
            return None
        added, before, at = found
        members |= added
    fitting = (set(range(256)) - members if negated else members) - {ord("/")}
    if not fitting:
        return b"(?!)", at + 1
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(fitting)) + b"]", at + 1


def _member(glob: bytes, at: int, before: int | None) -> tuple[set[int], int | None, int] | None:
    """Read one member of a set: its bytes, the byte with which a range may begin, and what comes next."""
    mark, rest = glob[at : at + 1], glob[at + 1 : at + 2]
    if not mark:
        return None
    if mark == b"-" and before is not None and rest and rest != b"]":
        end = _literal(glob, at + 1)
        return None if end is None else (set(range(before, end[0] + 1)), None, end[1])
    if glob[at : at + 2] == b"[:":
        close = glob.find(b"]", at + 2)
        if close < 0:
            return None
        if close > at + 2 and glob[close - 1 : close] == b":":
            kind = ASCII.get(glob[at + 2 : close - 1])
            return None if kind is None else (_fitting(kind), None, close + 1)
        return {ord("[")}, ord("["), at + 1
    literal = _literal(glob, at)
    return None if literal is None else ({literal[0]}, literal[0], literal[1])


def _literal(glob: bytes, at: int) -> tuple[int, int] | None:
    at += glob[at : at + 1] == b"\\"
    return (glob[at], at + 1) if at < len(glob) else None


def _fitting(kind: bytes) -> set[int]:
    return {byte for byte in range(256) if re.fullmatch(kind, bytes([byte]))}
