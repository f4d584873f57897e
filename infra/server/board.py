"""What a Telemetry tab shows: the run's layout, or a panel per key where it has no panel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.telemetry.layout import Layout, Panel, parse_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["STEP", "board"]

STEP = "step"
"""The key that a run without a layout is drawn against, when it writes it."""


def board(layout: str | None, keys: Sequence[str]) -> Layout:
    """Return what is shown of a run that has written `keys`, in order of arrival, so far.

    `layout` is the text of the `telemetry.toml` that the run was made with; None when it brought none. Where
    that has no panel, each key has one, against the x that the file names.

    Raises:
        LayoutError: The text cannot be read, which the run was refused for when it was made.
    """
    if layout is None:
        shown = Layout(x=STEP if STEP in keys else None, panels=(), stats=())
    else:
        shown = parse_layout(layout)
    return shown if shown.panels else replace(shown, panels=tuple(_plain(key, shown.x) for key in keys))


def _plain(key: str, x: str | None) -> Panel:
    return Panel(title=key, x=x, y=(key,), scale="linear", min=None, max=None, rule=None, wide=False)
