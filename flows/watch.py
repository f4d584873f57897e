"""Watching one run from outside: its ledger, its record, its events, as anybody could read them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from runtime.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from flows.ledger import Ledger
    from runtime.checkpoints.reader import Checkpoint

__all__ = ["Watch"]


class Watch:
    """One run whose work folder is on this host. `runs` holds the folders of the host's runs.

    Its location is the default one, below `SLUGLINE_LOCATION`. Nothing is remembered: every call reads.
    """

    def __init__(self, slug: str, runs: Path) -> None:
        from flows.ledger import LedgerFile
        from flows.parameters import file_name
        from runtime.checkpoints.location import open_location

        self.slug = slug
        self.location = f"{os.environ['SLUGLINE_LOCATION']}/{file_name(slug)}"
        self.folder = runs / file_name(slug)
        self.events = self.folder / "events.jsonl"
        self._location = open_location(self.location, os.environ)
        self._ledger = LedgerFile(self._location.store, slug)

    def ledger(self) -> Ledger | None:
        """How the attempts went so far; unset before the first."""
        return self._ledger.read()

    def step(self) -> int:
        """The newest step of which there is a metric, of the newest attempt; 0 before the first."""
        step = 0
        for event in self._events():
            if event["kind"] == "open":
                step = 0
            elif event["kind"] == "metric":
                step = event["step"]
        return step

    def resumed_from(self) -> int | None:
        """The step from which the run last resumed; unset while it never did."""
        steps = [
            event["step"]
            for event in self._events()
            if event.get("annotation", "").startswith("resumed from ")
        ]
        return steps[-1] if steps else None

    def newest_checkpoint(self) -> int:
        """The step of the newest checkpoint that counts; 0 before the first."""
        record = self._location.record()
        return record.newest.step if record is not None and record.newest is not None else 0

    def checkpoint(self) -> Checkpoint:
        """The newest checkpoint, read whole and verified.

        Raises:
            Unavailable: there is none.
        """
        found = self._location.find(slug=self.slug)
        if found.checkpoint is None:
            raise Unavailable(f"{self.location} holds no checkpoint that verifies")
        return found.checkpoint

    def metrics(self) -> dict[tuple[str, int, str], float]:
        """Every value but the rates by name, step and metadata; of a step made twice the newer one."""
        return {
            (event["name"], event["step"], json.dumps(event["metadata"])): event["value"]
            for event in self._events()
            if event["kind"] == "metric" and not event["name"].startswith("rate/")
        }

    def page(self) -> str:
        """The experiment's page in Metrics, as the newest attempt's summary names it.

        Raises:
            Unavailable: no event has reached Metrics.
        """
        newest = max(self.folder.glob("attempt-*.json"))
        page = json.loads(newest.read_bytes())["url"]
        if page is None:
            raise Unavailable(f"no event of {self.slug} has reached Metrics: slugline logs metrics says why")
        return str(page)

    def _events(self) -> list[dict[str, Any]]:
        try:
            lines = self.events.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]
