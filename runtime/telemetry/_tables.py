"""Reading TOML whose every mistake is one line: which table by number, which key, what is accepted."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["MAX_FILE_BYTES", "LayoutError", "Table", "file_text", "shown", "tables", "top_table"]

MAX_FILE_BYTES = 65_536
EXACT_INTEGERS = 2**53
"""Up to here a float is every integer, and every reader of JSON reads them alike."""

_AT = re.compile(r" \(at (line \d+, column \d+|end of document)\)\Z")
_MAX_SHOWN = 60
_MAX_ON_A_LINE = 1_000
"""Dots: tomllib's time grows with the square of a dotted key's parts. Digits: Python refuses 4,301."""
_DIGITS = re.compile(f"[0-9_]{{{_MAX_ON_A_LINE + 1}}}")


class LayoutError(ValueError):
    """A `telemetry.toml` or `checks.toml` that cannot be read; its text is one line and ready to be shown."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the file; `name` is what errors call it, such as `telemetry [[panel]] 2`."""

    name: str
    values: Mapping[str, Any]

    def only(self, *accepted: str) -> None:
        """Refuse a key that is not one of `accepted`."""
        for key in self.values:
            if key not in accepted:
                self.refuse(f"{shown(key)}, which is not one of {', '.join(accepted)}")

    def refuse(self, problem: str) -> NoReturn:
        """Raise `LayoutError`: the table has `problem`."""
        raise LayoutError(f"{self.name} has {problem}")

    def text(self, key: str) -> str | None:
        """Return a text; None when left out."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(f"{key} {shown(value)}, which is not text")
        return value

    def flag(self, key: str) -> bool:
        """Return true or false; false when left out."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            self.refuse(f"{key} {shown(value)}, which is not true or false")
        return value

    def number(self, key: str) -> float | None:
        """Return a finite number as it is written, an integer as one; None when left out."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(f"{key} {shown(value)}, which is not a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self.refuse(f"{key} {shown(value)}, which is not a finite number")
        return value if isinstance(value, int) and abs(value) <= EXACT_INTEGERS else number

    def one_of(self, key: str, accepted: Sequence[str]) -> str | None:
        """Return one of the texts `accepted`; None when left out."""
        value = self.values.get(key)
        if value is not None and value not in accepted:
            self.refuse(f"{key} {shown(value)}, which is not one of {', '.join(accepted)}")
        return value


def top_table(name: str, text: str | bytes) -> Table:
    """Parse a whole file; `name` is what its errors begin with. Bytes are decoded as UTF-8.

    Raises:
        LayoutError: it is not TOML in UTF-8, or larger than 64 KiB.
    """
    text = file_text(name, text).removeprefix("\ufeff")
    _check_lines(name, text)
    try:
        return Table(name, tomllib.loads(text))
    except RecursionError as error:
        raise LayoutError(f"{name} nests too deeply to be read; write plain tables and lists") from error
    except tomllib.TOMLDecodeError as error:
        raise LayoutError(_syntax(name, text, str(error))) from error


def file_text(name: str, data: str | bytes) -> str:
    """Return a file's text, whatever it says; whoever sends it elsewhere to be read has to have it first.

    Raises:
        LayoutError: it is not UTF-8, or larger than 64 KiB.
    """
    try:
        whole = data.encode() if isinstance(data, str) else data
        text = whole.decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        before = data[: error.start]
        line = _line_of(before if isinstance(before, str) else before.decode(errors="replace"))
        raise LayoutError(f"{name} is not UTF-8 at line {line}; write TOML in UTF-8") from error
    if len(whole) > MAX_FILE_BYTES:
        raise LayoutError(f"{name} has {len(whole):,} bytes, which is more than {MAX_FILE_BYTES:,}")
    return text


def tables(top: Table, key: str) -> Iterator[Table]:
    """Yield the tables `[[key]]` of the file, numbered from 1; none when there are none."""
    name = f"{top.name} [[{key}]]"
    value = top.values.get(key, [])
    if isinstance(value, dict):
        raise LayoutError(f"{top.name} has [{key}], which is not [[{key}]]; write [[{key}]] above each {key}")
    if not isinstance(value, list):
        top.refuse(f"{key} {shown(value)}, which is not a [[{key}]] table")
    for number, table in enumerate(value, start=1):
        if not isinstance(table, dict):
            raise LayoutError(f"{name} {number} is {shown(table)}, which is not a table")
        yield Table(f"{name} {number}", table)


def shown(value: object) -> str:
    """Return `value` as TOML writes it, on one line of at most 60 characters."""
    if isinstance(value, float):
        text = repr(value)
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            return "a value too large to show"
    if not text.isprintable():
        text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _check_lines(name: str, text: str) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        for what, is_too_long in (
            ("dots", line.count(".") > _MAX_ON_A_LINE),
            ("digits", _DIGITS.search(line)),
        ):
            if is_too_long:
                raise LayoutError(
                    f"{name} has more than {_MAX_ON_A_LINE:,} {what} on line {number}; write fewer"
                )


def _syntax(name: str, text: str, problem: str) -> str:
    found = _AT.search(problem)
    if found is None:
        return f"{name} is not TOML: {problem}"
    where = found[1]
    if where == "end of document":
        where = f"line {_line_of(text.rstrip())}, at the end"
    return f"{name} is not TOML at {where}: {problem[: found.start()]}"


def _line_of(before: str) -> int:
    return before.count("\n") + 1
