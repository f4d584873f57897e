"""The experiment of a run whose command knows nothing of Metrics: opened, started and ended by its flow."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from runtime.events.kinds import Open
from runtime.events.stream import EventStream, now_ms
from runtime.events.syvain.target import SyvainTarget

if TYPE_CHECKING:
    from flows.run_writer import Record
    from runtime.events.syvain.settings import MetricsSettings

__all__ = ["Announcer"]


class Announcer:
    """Tells Metrics that an experiment is open, runs (again and again, so that it is not quiet), and ended.

    In the background and in order, as a run of ours does; what Metrics does not take holds up nobody.
    """

    def __init__(self, settings: MetricsSettings, record: Record) -> None:
        self._settings, self._record = settings, record
        self._stream: EventStream | None = None

    def begin(self) -> None:
        """Open and start it; a second time is none."""
        if self._stream is not None:
            return
        self._stream = EventStream([SyvainTarget(self._settings, session=secrets.token_hex(16))])
        record = self._record
        run = {"kind": record.kind, "command": list(record.command or ()), "tree": record.tree}
        self._stream.open(
            Open(
                ts_ms=now_ms(),
                slug=record.slug,
                description=f"Run {record.slug}",
                metadata={**record.meta, "run": run},
            )
        )

    def end(self, error: str | None) -> None:
        """Say that it is done, or failed with `error`."""
        self.begin()
        assert self._stream is not None
        if error is None:
            self._stream.done(self._record.slug)
        else:
            self._stream.fail(0, error)

    def close(self, *, timeout_s: float) -> int:
        """Send what is left within `timeout_s`; return how many events Metrics has not taken."""
        if self._stream is None:
            return 0
        summary = self._stream.close(timeout_s=timeout_s)
        self._stream = None
        return summary.unsent
