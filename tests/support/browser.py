"""A real Chromium that tests look at pages with, and what a page drew."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, Locator, Page

__all__ = ["Ink", "browser", "ink", "watched"]

PATIENCE_MS = 60_000
"""For what a page will show: a browser and a server on a busy machine take seconds."""

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SWITCHES = [
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--force-color-profile=srgb",
]
_HOW = (
    "no Chromium on this machine: `apt-get install chromium`, or `playwright install chromium`, or name one"
    " in SLUGLINE_BROWSER"
)
_FIRST = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
document.addEventListener("readystatechange", () => {
  const main = document.querySelector("main[data-poll]");
  if (main) main.dataset.poll = 200;
});
"""
"""Runs before a page's own scripts: what its policy forbids is noted, and it looks for news more often."""
_INK = """(canvas, name) => {
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height + 1).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  copy.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
  copy.fillRect(0, height, 1, 1);
  const wanted = copy.getImageData(0, height, 1, 1).data;
  const pixels = copy.getImageData(0, 0, width, height).data;
  const columns = {};
  for (let x = 0; x < width; x++) {
    for (let y = 0; y < height; y++) {
      const at = 4 * (y * width + x);
      const off = [0, 1, 2].reduce((sum, one) => sum + Math.abs(pixels[at + one] - wanted[one]), 0);
      if (pixels[at + 3] > 100 && off < 60) (columns[x] ??= [y, y])[1] = y;
    }
  }
  const over = canvas.parentElement.querySelector(".u-over");
  const { offsetLeft: left, offsetTop: top } = over;
  return { columns, left, top, width: over.clientWidth, height: over.clientHeight };
}"""


class Ink:
    """What of one colour a panel's canvas has: by column of pixels the highest and the lowest."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.columns = {int(x): (ends[0], ends[1]) for x, ends in found["columns"].items()}
        self.left, self.top = found["left"], found["top"]
        self.width, self.height = found["width"], found["height"]

    def at(self, share: float, *, within: int = 1) -> tuple[int, int]:
        """Return the highest and the lowest at a share of the x axis, in pixels from the top of the plot."""
        near = self._near(share, within)
        assert near, f"nothing is drawn at {share} of the x axis"
        return min(high for high, _ in near) - self.top, max(low for _, low in near) - self.top

    def is_blank(self, share: float, *, within: int = 1) -> bool:
        """Whether nothing is drawn at a share of the x axis, nor so many pixels from it."""
        return not self._near(share, within)

    def _near(self, share: float, within: int) -> list[tuple[int, int]]:
        wanted = round(self.left + share * self.width)
        return [self.columns[x] for x in range(wanted - within, wanted + within + 1) if x in self.columns]


def ink(figure: Locator, colour: str = "--c0") -> Ink:
    """Return what of a colour of the pages a panel has drawn."""
    return Ink(figure.locator("canvas").evaluate(_INK, colour))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A started Chromium. Where there is none tests are skipped, but not where CI says that it is CI.

    Not for longer than a module: Playwright's event loop runs in this thread, where others want their own.
    """
    from playwright.sync_api import expect, sync_playwright  # only those who look pay for it

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        found = _found(playwright.chromium.executable_path)
        if found is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(_HOW)
        started = playwright.chromium.launch(executable_path=found, args=_SWITCHES)
        yield started
        started.close()


@contextmanager
def watched(context: BrowserContext) -> Iterator[Page]:
    """A page on which nothing may fail: no script, no request, nothing that its policy forbids."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
    page.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("response", lambda response: wrong.append(response.url) if response.status >= 400 else None)
    page.add_init_script(_FIRST)
    yield page
    wrong += page.evaluate("window.violations ?? []")
    assert wrong == []


def _found(own: str) -> str | None:
    named = os.environ.get("SLUGLINE_BROWSER")
    if named is not None:
        return named
    installed = next((path for path in map(shutil.which, _NAMES) if path), None)
    return installed or (own if Path(own).exists() else None)
