"""What a Telemetry tab shows: the run's layout, or a panel per key where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["STEP", "Board", "Panel", "Stat", "board_of"]

STEP = "step"
"""The key that a run without a layout is drawn against, when it writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One set of axes. `x` None is the point's place in the run; bounds of None are fitted to the points."""

    title: str
    keys: tuple[str, ...]
    x: str | None = None
    scale: Literal["linear", "log"] = "linear"
    minimum: float | None = None
    maximum: float | None = None
    rule: float | None = None
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One number a key: the last, the lowest or the highest that was written."""

    title: str
    keys: tuple[str, ...]
    reduce: Literal["last", "min", "max"] = "last"


@dataclass(frozen=True, slots=True)
class Board:
    """Panels and stats, in the order in which they are shown. `laid_out`: the run brought a layout."""

    panels: tuple[Panel, ...]
    stats: tuple[Stat, ...]
    laid_out: bool


def board_of(layout: Mapping[str, Any] | None, keys: Sequence[str]) -> Board:
    """Return what is shown of a run that has written `keys`, in order of arrival, so far.

    `layout` is what the server keeps of the run's `telemetry.toml`; None when the run brought none.
    """
    if layout is None:
        x = STEP if STEP in keys else None
        return Board(tuple(Panel(title=key, keys=(key,), x=x) for key in keys), (), laid_out=False)
    return Board(
        tuple(_panel(panel, layout.get("x")) for panel in layout.get("panels") or ()),
        tuple(_stat(stat) for stat in layout.get("stats") or ()),
        laid_out=True,
    )


def _panel(panel: Mapping[str, Any], x: str | None) -> Panel:
    keys = _keys(panel["y"])
    return Panel(
        title=_title(panel, keys),
        keys=keys,
        x=panel.get("x") or x,
        scale=panel.get("scale") or "linear",
        minimum=panel.get("min"),
        maximum=panel.get("max"),
        rule=panel.get("rule"),
        wide=bool(panel.get("wide")),
    )


def _stat(stat: Mapping[str, Any]) -> Stat:
    keys = _keys(stat["y"])
    return Stat(title=_title(stat, keys), keys=keys, reduce=stat.get("reduce") or "last")


def _keys(y: str | Collection[str]) -> tuple[str, ...]:
    return (y,) if isinstance(y, str) else tuple(y)


def _title(table: Mapping[str, Any], keys: Sequence[str]) -> str:
    return table.get("title") or ", ".join(keys)
