"""What a run shows in Prefect: its trainer's log lines, and artifacts that are replaced as it goes on."""

from __future__ import annotations

import logging
import re
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from flows.endings import describe
from flows.ledger import Entry, Ledger
from flows.picture import data_uri, loss_picture
from flows.progress import Progress, WholeLines
from flows.server import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Report", "artifact_key", "summary"]

LINES_A_TICK = 200
LINE_CHARACTERS = 2_000
CHECKPOINTS_SHOWN = 10
PAGE_PATTERN = re.compile(r"https?://\S+/dashboard/experiments/[\w%.~-]+")


class Report:
    """Reads a run's events and its trainer's log, and shows them; every method may be called from any thread.

    `found_page` returns the experiment's page where the log does not name it, "" while nobody knows it.
    Nothing of it can hold up training: log lines go through Prefect's own queue, and artifacts are written
    by a thread that gives up on a server that does not answer and tries again later.
    """

    def __init__(
        self,
        *,
        slug: str,
        flow_run_id: str,
        events: Path,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self.slug, self.flow_run_id = slug, flow_run_id
        self.progress = Progress()
        self.status, self.page, self.ledger = "starting", "", Ledger(slug=slug)
        self._events, self._log = WholeLines(events), log
        self.shown_progress: Callable[[int], str] = str
        self.found_page: Callable[[], str] = str
        self._lines: WholeLines | None = None
        self._last_line = ""
        self._lock = threading.Lock()
        self._shown: dict[str, object] = {}

    def begin(self, log: Path) -> None:
        """Show another attempt's log from now on."""
        with self._lock:
            self._lines = WholeLines(log, offset=log.stat().st_size if log.exists() else 0)
            self._last_line = ""
            self._read_events()
            self.progress.failed = None

    def say(self, text: str) -> None:
        """Say on the run what somebody may want to act on, and keep it as its status."""
        self._say(logging.WARNING, text)

    def note(self, text: str) -> None:
        """Say on the run that all is well, and keep it as its status."""
        self._say(logging.INFO, text)

    def remark(self, text: str) -> None:
        """Say something that is no status."""
        self._log.warning("%s: %s", self.slug, text)

    def last_line(self) -> str:
        """Return the last line that the trainer logged, "" without one."""
        self.read()
        return self._last_line

    def steps(self) -> tuple[int, int]:
        """Return the newest step and the newest event's time in epoch milliseconds."""
        return self.progress.step, self.progress.last_event_ms

    def read(self) -> None:
        """Take in what the trainer has written since the last call."""
        with self._lock:
            self._read_events()
            if self._lines is None:
                return
            lines = [line.decode(errors="replace").rstrip() for line in self._lines.lines()]
            for line in lines:
                if found := PAGE_PATTERN.search(line):
                    self.page = found[0]
                self._last_line = line[:LINE_CHARACTERS] or self._last_line
            self._forward([line for line in lines if line])

    def publish(self) -> None:
        """Write the artifacts that have changed; of a run that tells no events, the summary alone.

        Raises:
            Unavailable: the Prefect server cannot be reached.
        """
        key = artifact_key(self.slug)
        wanted: dict[str, tuple[str, object, str]] = {}
        with self._lock:
            if self.progress.last_event_ms:
                wanted[f"{key}-progress"] = ("progress", _percent(self.progress), _headline(self))
                wanted[f"{key}-loss"] = ("image", data_uri(_picture(self)), f"Loss of {self.slug}")
            wanted[key] = ("markdown", summary(self), f"Run {self.slug}")
        changed = {name: value for name, value in wanted.items() if self._shown.get(name) != value}
        if not changed:
            return
        with connect(retries=0) as server:
            for name, (kind, data, description) in changed.items():
                server.put_artifact(self.flow_run_id, key=name, type=kind, data=data, description=description)
                self._shown[name] = wanted[name]

    def _say(self, level: int, text: str) -> None:
        if text != self.status:
            self.status = text
            self._log.log(level, "%s: %s", self.slug, text)

    def _read_events(self) -> None:
        self.progress.read(self._events.lines())

    def _forward(self, lines: Sequence[str]) -> None:
        for line in lines[:LINES_A_TICK]:
            self._log.info("%s", line[:LINE_CHARACTERS])
        if (left := len(lines) - LINES_A_TICK) > 0:
            self._log.info("... %d more lines in the attempt's log", left)


def artifact_key(slug: str) -> str:
    """Return the artifact key of a slug: Prefect takes lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") or "run"


def summary(report: Report) -> str:
    """Return the run's page in Markdown: how it stands, its attempts, its checkpoints, where to look."""
    parts = [f"**{_escape(report.status)}**" + (f" — {told}" if (told := _headline(report)) else "")]
    if page := report.page or report.found_page():
        parts.append(f"[The experiment's page]({page})")
    parts.append(_table(("attempt", "host", "started", "from", "kept", "ending"), _attempts(report)))
    newest = report.progress.checkpoints[-CHECKPOINTS_SHOWN:][::-1]
    rows = [(c.step, _time(c.ts_ms), f"{c.seconds:.2f}", f"`{c.path}`") for c in newest]
    if rows:
        parts.append(_table(("checkpoint", "written", "seconds", "where"), rows))
    return "\n\n".join(parts)


def _attempts(report: Report) -> list[tuple[object, ...]]:
    return [
        (
            entry.number,
            entry.host,
            _time(entry.started_ms),
            report.shown_progress(entry.start_step),
            "" if entry.end_step is None else report.shown_progress(entry.end_step),
            _how(entry),
        )
        for entry in report.ledger.attempts
    ]


def _how(entry: Entry) -> str:
    if entry.ended_ms is None:
        return "running"
    return _escape(describe(entry.ended())) + (f" ({entry.tries} tries)" if entry.tries > 1 else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _headline(report: Report) -> str:
    """Return how far the run's events are; "" before the first, which a shipped command never tells."""
    progress = report.progress
    if not progress.last_event_ms:
        return ""
    parts = [f"step {progress.step}" + (f" of {progress.total}" if progress.total else "")]
    if progress.train_loss.points:
        parts.append(f"train loss {progress.train_loss.points[-1][1]:.4g}")
    if progress.eval_loss.points:
        parts.append(f"eval loss {progress.eval_loss.points[-1][1]:.4g}")
    if progress.rate:
        parts.append(f"{progress.rate[1]:,.0f} {progress.rate[0]}/s")
    return ", ".join(parts)


def _percent(progress: Progress) -> float:
    return min(100.0, round(100 * progress.step / progress.total, 2)) if progress.total else 0.0


def _picture(report: Report) -> str:
    lines = (
        ("train/loss", "#2563eb", report.progress.train_loss.points),
        ("eval/loss", "#ea580c", report.progress.eval_loss.points),
    )
    return loss_picture(report.slug, lines)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
