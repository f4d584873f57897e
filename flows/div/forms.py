"""What `div telemetry` prints: the summary table, and points as columns or as JSON. Pure.

Points come as the server keeps them, `{"seq": 1, "data": {"loss": 2.31}}`, one a line. The text of a number
is never touched: it is in the fewest digits that read back to the same value since it was stored.
"""

from __future__ import annotations

import csv
import io
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import astuple

from runtime.telemetry.rules import is_key, number_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["SEQ", "columns_form", "json_form", "summary_table"]

SEQ = "seq"
"""What the column of a point's place in the run is called."""
_NUMBER_WIDTH = 7
_GAP = 2
_NOTHING = msgspec.Raw(b"")


def summary_table(keys: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of the server's summary: a key on each line, in the order in which they arrived."""
    rows = [("key", "count", "last", "min", "max")]
    for one in keys:
        numbers = (number_text(one[name]) for name in ("last", "min", "max"))
        rows.append((one["key"], str(one["count"]), *numbers))
    columns = zip(*rows, strict=True)
    least = (0, 0, _NUMBER_WIDTH, _NUMBER_WIDTH, _NUMBER_WIDTH)
    widths = [max(low, *map(len, cells)) + _GAP for low, cells in zip(least, columns, strict=True)]
    lines = ("".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def columns_form(columns: Sequence[str | None], separator: str) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Return the header row, and what makes rows of lines, one a point, with an empty cell for what it lacks.

    The column None is the point's place in the run.
    """
    keys = _keys(columns)
    places = {None: len(keys)} | {key: place for place, key in enumerate(keys)}
    decode = _decoder(keys)
    cells = _picked([places.get(column, len(keys) + 1) for column in columns])
    between = separator.encode()

    def rows(lines: bytes) -> bytes:
        found = [between.join(cells((*astuple(point.data), point.seq, b""))) for point in decode(lines)]
        return b"\n".join([*found, b""])

    return _header([SEQ if column is None else column for column in columns], separator), rows


def json_form(keys: Sequence[str]) -> Callable[[bytes], bytes]:
    """Return what makes of lines those with these keys alone; without keys lines stay as they are."""
    if not keys:
        return _as_it_is
    keys = _keys(keys)
    decode = _decoder(keys)
    names = [msgspec.json.encode(key) + b": " for key in keys]

    def line_of(point: Any) -> bytes:
        pairs = zip(names, astuple(point.data), strict=True)
        data = b", ".join([name + value for name, value in pairs if value is not _NOTHING])
        return b'{"seq": %b, "data": {%b}}' % (point.seq, data)

    return lambda lines: b"\n".join([*map(line_of, decode(lines)), b""])


def _as_it_is(lines: bytes) -> bytes:
    return lines


def _keys(asked: Iterable[str | None]) -> list[str]:
    """Return what a run can have written of what was asked for, each once."""
    return [key for key in dict.fromkeys(asked) if key is not None and is_key(key)]


def _decoder(keys: Sequence[str]) -> Callable[[bytes], list[Any]]:
    """Return what reads lines as points: `.seq`, and `.data` with the text of these keys' numbers."""
    fields = [(f"f{place}", msgspec.Raw, _NOTHING) for place in range(len(keys))]
    names = {f"f{place}": key for place, key in enumerate(keys)}
    data = msgspec.defstruct("Data", fields, rename=names, frozen=True, gc=False)
    point = msgspec.defstruct("Point", [("seq", msgspec.Raw), ("data", data)], frozen=True, gc=False)
    return msgspec.json.Decoder(point).decode_lines


def _picked(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    if len(places) == 1:
        return lambda cells: (cells[places[0]],)
    return itemgetter(*places)


def _header(names: Sequence[str], separator: str) -> bytes:
    row = io.StringIO()
    csv.writer(row, delimiter=separator, lineterminator="\n").writerow(names)
    return row.getvalue().encode("utf-8", "backslashreplace")
