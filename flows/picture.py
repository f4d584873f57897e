"""A loss curve as a picture: SVG text, small enough to travel in an artifact, no plotting library."""

from __future__ import annotations

import base64
import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["data_uri", "loss_picture"]

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 36
MAX_DRAWN = 720

Point = tuple[int, float]


def loss_picture(title: str, lines: Sequence[tuple[str, str, Sequence[Point]]]) -> str:
    """Return an SVG of `lines`, each (name, colour, points by step). Without a point it says so."""
    points = [point for _name, _colour, line in lines for point in line]
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">',
        '<g font-family="system-ui, sans-serif" font-size="12" fill="#475569">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" fill="#0f172a">{escape(title)}</text>',
    ]
    if points:
        body += _plot(lines, points)
    else:
        body.append(f'<text x="{LEFT}" y="{HEIGHT // 2}">no loss yet</text>')
    return "".join([*body, "</g></svg>"])


def data_uri(svg: str) -> str:
    """Return `svg` as an address that a page can show without asking anyone."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _plot(lines: Sequence[tuple[str, str, Sequence[Point]]], points: Sequence[Point]) -> list[str]:
    steps, values = [step for step, _ in points], [value for _, value in points]
    x_low, x_high = min(steps), max(*steps, min(steps) + 1)
    y_low, y_high = _widened(min(values), max(values))

    def place(step: int, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (step - x_low) / (x_high - x_low)
        y = TOP + (HEIGHT - TOP - BOTTOM) * (y_high - value) / (y_high - y_low)
        return round(x, 1), round(y, 1)

    drawn = _axes(x_low, x_high, y_low, y_high)
    legend = WIDTH - RIGHT
    for name, colour, line in reversed(lines):
        if not line:
            continue
        where = " ".join(f"{x},{y}" for x, y in (place(*point) for point in _thinned(line)))
        drawn.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x, y = place(*line[-1])
        drawn.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        label = f"{name} {line[-1][1]:.4g}"
        drawn.append(f'<text x="{legend}" y="22" text-anchor="end" fill="{colour}">{escape(label)}</text>')
        legend -= 8 * len(label) + 16
    return drawn


def _axes(x_low: int, x_high: int, y_low: float, y_high: float) -> list[str]:
    drawn = []
    for part in range(5):
        y = TOP + (HEIGHT - TOP - BOTTOM) * part / 4
        value = y_high - (y_high - y_low) * part / 4
        drawn.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#e2e8f0"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:.4g}</text>')
    middle = HEIGHT - BOTTOM + 20
    for x, anchor, step in ((LEFT, "start", x_low), (WIDTH - RIGHT, "end", x_high)):
        drawn.append(f'<text x="{x}" y="{middle}" text-anchor="{anchor}">step {step}</text>')
    return drawn


def _widened(low: float, high: float) -> tuple[float, float]:
    margin = (high - low) * 0.05 or max(abs(high) * 0.05, 1e-9)
    return (0.0 if 0 <= low < margin else low - margin), high + margin


def _thinned(line: Sequence[Point]) -> list[Point]:
    """Return about a point a pixel: the lowest and the highest of each bucket, so that spikes stay."""
    if len(line) <= MAX_DRAWN:
        return list(line)
    size = math.ceil(len(line) / (MAX_DRAWN // 2))
    kept: list[Point] = []
    for first in range(0, len(line), size):
        bucket = range(first, min(first + size, len(line)))
        low, high = min(bucket, key=lambda i: line[i][1]), max(bucket, key=lambda i: line[i][1])
        kept += [line[i] for i in sorted({low, high})]
    return kept
