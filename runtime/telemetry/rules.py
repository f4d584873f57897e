"""What is kept of the lines that a run writes to its telemetry file. Pure: no file, no clock, no network.

The tail that follows the file, the server that stores points and the command that prints them all call it.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING

from runtime.telemetry._json import TooDeep, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "MAX_LINE_BYTES",
    "MAX_LINE_NUMBERS",
    "MAX_RUN_KEYS",
    "MAX_RUN_POINTS",
    "Number",
    "Reason",
    "Rules",
    "dropped_lines",
    "is_key",
    "leaves",
    "number_text",
]

MAX_LINE_BYTES = 4096
"""Of one line, its line end (LF or CR LF) not counted."""
MAX_LINE_NUMBERS = 64
"""Finite numbers on one line, whatever their keys; those in arrays are not counted."""
MAX_RUN_KEYS = 256
MAX_RUN_POINTS = 200_000

Number = int | float

_KEY = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1


class Reason(StrEnum):
    """Why a line, a point or a number was dropped. Its value is its name on the wire."""

    NOT_JSON = "not_json"
    NOT_OBJECT = "not_object"
    TOO_LONG = "too_long"
    TOO_DEEP = "too_deep"
    TOO_MANY_NUMBERS = "too_many_numbers"
    BAD_KEY = "bad_key"
    TOO_MANY_KEYS = "too_many_keys"
    TOO_MANY_POINTS = "too_many_points"

    @property
    def one(self) -> str:
        """What the log says when this reason comes up for the first time: what was dropped; what to do."""
        what, _, remedy = _TEXTS[self]
        return f"{what}; {remedy}"

    def many(self, count: int) -> str:
        """Return the text for `count` of them; for one of them it is `one`."""
        _, what, remedy = _TEXTS[self]
        return self.one if count == 1 else f"{what.format(count)}; {remedy}"


_TEXTS = {
    Reason.NOT_JSON: (
        "dropped a line that is not JSON",
        "dropped {} lines that are not JSON",
        "write one JSON object per line",
    ),
    Reason.NOT_OBJECT: (
        "dropped a line that is JSON but not an object",
        "dropped {} lines that are JSON but not objects",
        "write one JSON object per line",
    ),
    Reason.TOO_LONG: (
        "dropped a line over 4 KiB",
        "dropped {} lines over 4 KiB",
        "write less on one line, or several lines",
    ),
    Reason.TOO_DEEP: (
        "dropped a line that nests more than 1,024 deep",
        "dropped {} lines that nest more than 1,024 deep",
        "nest less",
    ),
    Reason.TOO_MANY_NUMBERS: (
        "dropped a line with more than 64 numbers",
        "dropped {} lines with more than 64 numbers",
        "write them on several lines",
    ),
    Reason.BAD_KEY: (
        "left out a number whose key is not letters, digits, _ and - between dots",
        "left out {} numbers whose key is not letters, digits, _ and - between dots",
        "name it like train.loss, not train/loss",
    ),
    Reason.TOO_MANY_KEYS: (
        "left out a number under a new key, as the run has its 256 keys",
        "left out {} numbers under new keys, as the run has its 256 keys",
        "write under fewer keys",
    ),
    Reason.TOO_MANY_POINTS: (
        "dropped a point, as the run has its 200,000 points",
        "dropped {} points, as the run has its 200,000 points",
        "write less often",
    ),
}


class Rules:
    """The rules and the state of one run that they need; lives as long as its file is followed.

    Args:
        keys: the run's keys so far, in the order in which they first arrived.
        points: how many points it has so far.
        dropped: what was dropped so far, by the value of its reason.
    """

    def __init__(
        self, *, keys: Sequence[str] = (), points: int = 0, dropped: Mapping[str, int] | None = None
    ) -> None:
        self.keys: list[str] = list(keys)
        self.points = points
        self.dropped: Counter[Reason] = Counter(
            {Reason(why): count for why, count in (dropped or {}).items()}
        )
        self._known = set(keys)

    def take(self, line: bytes) -> dict[str, Number] | None:
        """Return the data of the point that `line` becomes, empty without a number; None if it is dropped.

        `line` is what stands before a line feed, or with it; whatever bytes it holds, nothing is raised.
        """
        record = _record(line)
        if isinstance(record, Reason):
            self.drop(record)
            return None
        return self.keep(record)

    def keep(self, record: Mapping[str, object]) -> dict[str, Number] | None:
        """Return what `take` returns for a line that holds `record`; a point's data is a record, too."""
        found: dict[str, Number] = {}
        num_numbers = 0
        for key, value in leaves(record):
            if type(value) is float:
                if not isfinite(value):
                    continue
                found[key] = value
            elif type(value) is int:
                number = value if _MIN_INT <= value <= _MAX_INT else _as_double(value)
                if number is None:
                    continue
                found[key] = number
            else:
                continue
            num_numbers += 1
        if num_numbers > MAX_LINE_NUMBERS or self.points >= MAX_RUN_POINTS:
            self.drop(Reason.TOO_MANY_NUMBERS if num_numbers > MAX_LINE_NUMBERS else Reason.TOO_MANY_POINTS)
            return None
        self.points += 1
        return found if found.keys() <= self._known else self._with_new_keys(found)

    def drop(self, reason: Reason) -> None:
        """Count what the caller could not even hand over, such as a line too long to hold in memory."""
        self.dropped[reason] += 1

    def _with_new_keys(self, found: dict[str, Number]) -> dict[str, Number]:
        data: dict[str, Number] = {}
        for key, value in found.items():
            if key not in self._known:
                if not is_key(key):
                    self.drop(Reason.BAD_KEY)
                    continue
                if len(self.keys) >= MAX_RUN_KEYS:
                    self.drop(Reason.TOO_MANY_KEYS)
                    continue
                self._known.add(key)
                self.keys.append(key)
            data[key] = value
        return data


def is_key(key: str) -> bool:
    """Return whether a number may stand under `key`: ASCII letters, digits, `_`, `-` between single dots."""
    return _KEY.fullmatch(key) is not None


def leaves(record: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield what `record` holds under dotted keys, in order; nested objects are gone into, arrays are not.

    The same key may come twice (`{"a": {"b": 1}, "a.b": 2}`): the last one stands, like in one object.
    """
    prefix, items = "", iter(record.items())
    above: list[tuple[str, Iterator[tuple[str, object]]]] = []
    while True:
        for key, value in items:
            if type(value) is dict:
                above.append((prefix, items))
                prefix, items = f"{prefix}{key}.", iter(value.items())
                break
            yield prefix + key, value
        else:
            if not above:
                return
            prefix, items = above.pop()


def number_text(value: Number) -> str:
    """Return `value` in the fewest digits that read back to the same value, in JSON as in Python."""
    return repr(value)


def dropped_lines(dropped: Mapping[str, int] | Mapping[Reason, int]) -> list[str]:
    """Return a line for each reason in `dropped`, with its count, as `div telemetry` says it on stderr.

    A reason that this version does not know (its server is newer) is named as it is.
    """
    known = {reason.value: reason for reason in Reason}
    return [
        f"telemetry: {known[why].many(count)}" if why in known else f"telemetry: dropped {count}: {why}"
        for why, count in dropped.items()
        if count
    ]


def _record(line: bytes) -> dict[str, object] | Reason:
    if len(line) > MAX_LINE_BYTES and len(line.removesuffix(b"\n").removesuffix(b"\r")) > MAX_LINE_BYTES:
        return Reason.TOO_LONG
    try:
        record = read(line)
    except TooDeep:
        return Reason.TOO_DEEP
    except ValueError:
        return Reason.NOT_JSON
    return record if isinstance(record, dict) else Reason.NOT_OBJECT


def _as_double(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None
