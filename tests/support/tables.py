"""Tables of the documentation, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def rows_of(page: Path, first_column: str) -> list[list[str]]:
    """The cells of the table whose first heading is `first_column`, without its head."""
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first_column} |"):
            next(lines)
            break
    else:
        raise AssertionError(f"no table with the column {first_column!r} in {page}")
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("| \n").split("|")])
    return rows
