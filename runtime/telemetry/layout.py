"""`telemetry.toml`: how a run's Telemetry tab is laid out. Pure; read when the run is created."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from runtime.telemetry._tables import LayoutError, Table, file_text, shown, tables, top_table
from runtime.telemetry.rules import is_key

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAX_PANEL_KEYS",
    "REDUCTIONS",
    "SCALES",
    "Layout",
    "LayoutError",
    "Panel",
    "Stat",
    "file_text",
    "parse_layout",
]

MAX_PANEL_KEYS = 4
SCALES = ("linear", "log")
REDUCTIONS = ("last", "min", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: up to four keys against one x. A left-out title is its keys, a left-out x the file's."""

    title: str
    x: str | None
    """The key it is drawn against; None: a point's place in the run."""
    y: tuple[str, ...]
    scale: str
    min: float | None
    """The y axis's lower bound; None: fitted to the points. `max` likewise."""
    max: float | None
    rule: float | None
    """Where a horizontal line is drawn; None: nowhere."""
    wide: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One number for each of its keys: the last, lowest or highest value."""

    title: str
    y: tuple[str, ...]
    reduce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A whole file, everything left out filled in."""

    x: str | None
    panels: tuple[Panel, ...]
    stats: tuple[Stat, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the layout as plain data: `{"x", "panels": [{"title", ...}], "stats": [{"title", ...}]}`."""
        return {
            "x": self.x,
            "panels": [asdict(panel) | {"y": list(panel.y)} for panel in self.panels],
            "stats": [asdict(stat) | {"y": list(stat.y)} for stat in self.stats],
        }


def parse_layout(text: str | bytes) -> Layout:
    """Return the layout that a `telemetry.toml` describes.

    Raises:
        LayoutError: it cannot be read; the text names the table by its number, the key and what is accepted.
    """
    top = top_table("telemetry", text)
    top.only("x", "panel", "stat")
    x = _key(top, "x")
    return Layout(
        x=x,
        panels=tuple(_panel(table, x) for table in tables(top, "panel")),
        stats=tuple(_stat(table) for table in tables(top, "stat")),
    )


def _panel(table: Table, x: str | None) -> Panel:
    table.only("title", "x", "y", "scale", "min", "max", "rule", "wide")
    y = _keys(table)
    if len(y) > MAX_PANEL_KEYS:
        table.refuse(f"{len(y)} keys in y, which is more than {MAX_PANEL_KEYS}")
    panel = Panel(
        title=_title(table, y),
        x=_key(table, "x") or x,
        y=y,
        scale=table.one_of("scale", SCALES) or "linear",
        min=table.number("min"),
        max=table.number("max"),
        rule=table.number("rule"),
        wide=table.flag("wide"),
    )
    _check_bounds(table, panel)
    return panel


def _check_bounds(table: Table, panel: Panel) -> None:
    if panel.min is not None and panel.max is not None and panel.min >= panel.max:
        relation = "above" if panel.min > panel.max else "the same as"
        table.refuse(
            f"min {shown(table.values['min'])}, which is {relation} max {shown(table.values['max'])};"
            " min must be below max"
        )
    if panel.scale == "log":
        for key in ("min", "max", "rule"):
            if (value := table.values.get(key)) is not None and value <= 0:
                table.refuse(f"{key} {shown(value)}, which is not on a log scale; it must be above 0")


def _stat(table: Table) -> Stat:
    table.only("title", "y", "reduce")
    y = _keys(table)
    return Stat(title=_title(table, y), y=y, reduce=table.one_of("reduce", REDUCTIONS) or "last")


def _title(table: Table, y: Sequence[str]) -> str:
    title = table.text("title")
    return ", ".join(y) if title is None else title


def _keys(table: Table) -> tuple[str, ...]:
    value = table.values.get("y")
    if value is None:
        table.refuse("no y, which is required: the key, or the keys, to draw")
    keys = value if isinstance(value, list) else [value]
    if not keys or not all(isinstance(key, str) for key in keys):
        table.refuse(f"y {shown(value)}, which is not a key or a list of keys")
    for key in keys:
        _check_key(table, "y", key)
    return tuple(keys)


def _key(table: Table, name: str) -> str | None:
    value = table.values.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        table.refuse(f"{name} {shown(value)}, which is not a key")
    _check_key(table, name, value)
    return value


def _check_key(table: Table, name: str, key: str) -> None:
    if not is_key(key):
        table.refuse(f"{name} {shown(key)}, which is not letters, digits, _ and - between dots, as a key is")
