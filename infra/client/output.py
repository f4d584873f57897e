"""What a command prints: tables for people, JSON for programs, and nothing else on standard output."""

from __future__ import annotations

import json
import sys
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["compact", "print_fields", "print_json", "print_table", "print_text", "say", "shown", "time_of"]

MAX_WHOLE_CELL = 36
"""Columns of a terminal: so much of a cell is never broken; an id is that long."""


def say(text: str) -> None:
    """Tell the user something on standard error."""
    sys.stderr.write(text + "\n")


def print_text(text: str) -> None:
    """Print one line of data."""
    sys.stdout.write(text + "\n")


def print_json(value: Any) -> None:
    """Print one JSON document; numbers read back to the same value."""
    print_text(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. Where nobody looks (a pipe, a file) it has no colour and cuts and wraps nothing."""
    texts = [[shown(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_to_look_at(columns, texts)
        return
    widths = [max(map(_width, column)) for column in zip(columns, *texts, strict=True)]
    for row in (columns, *texts):
        cells = (f"{cell}{' ' * (width - _width(cell))}" for cell, width in zip(row, widths, strict=True))
        print_text("  ".join(cells).rstrip())


def _print_to_look_at(columns: Sequence[str], texts: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    needed = 0
    for column, *cells in zip(columns, *texts, strict=True):
        width = max(map(_width, (column, *cells)))
        # A number, a state, a time or an id in pieces is none; a terminal that is too narrow breaks the line.
        whole = width <= MAX_WHOLE_CELL
        table.add_column(column, overflow="fold", no_wrap=whole)
        needed += min(width, MAX_WHOLE_CELL) + 3  # its padding, and one: rich shares out whole columns
    for row in texts:
        table.add_row(*map(Text, row))
    console = Console(file=sys.stdout, highlight=False)
    console.size = max(console.width, needed), console.height  # of a dumb one rich knows no width by itself
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        print_text(line.rstrip())


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "FW" else 1
        for one in text
    )


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one thing: a name and a value on each line; what is unset is left out."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        if value is not None:
            print_text(f"{name:<{width}}  {shown(value)}")


def shown(value: object) -> str:
    """Return a value as people read it. Characters that could move a terminal's cursor are escaped."""
    if value is None:
        return ""
    if isinstance(value, dict | list):
        text = compact(value)
    else:
        text = repr(value) if isinstance(value, float) else str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def compact(value: object) -> str:
    """Return compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def time_of(timestamp_ms: int | None) -> str | None:
    """Return a time in UTC as people read it, to the second; unset stays unset."""
    if timestamp_ms is None:
        return None
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"  # past the year 9999
