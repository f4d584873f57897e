"""Progress for people, on standard error: one live line on a terminal, else a plain line now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.progress import TaskID

    from runtime.events.kinds import Point

__all__ = ["PlainProgress", "Progress", "TerminalProgress", "progress_for"]

_PLAIN_EVERY_S = 5.0


class Progress(Protocol):
    """Shows how far a run is. `updated` is called on the stream's thread, the rest on the training thread."""

    def started(self, step: int) -> None:
        """The run goes on from `step`."""
        ...

    def updated(self, step: int, points: Sequence[Point]) -> None:
        """`step` updates are done; `points` are the last one's metrics."""
        ...

    def evaluating(self, name: str) -> None:
        """An evaluation begins."""
        ...

    def close(self) -> None:
        """Give the terminal back. Nothing is shown afterwards."""
        ...


class PlainProgress:
    """A line at the first step, every few seconds, and at the last step."""

    def __init__(
        self,
        steps: int,
        out: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = _PLAIN_EVERY_S,
    ) -> None:
        self._steps = steps
        self._out = out
        self._clock = clock
        self._every_s = every_s
        self._pace = _Pace(steps, clock)
        self._shown_at: float | None = None

    def started(self, step: int) -> None:
        """Count from `step`."""
        self._pace.start(step)

    def updated(self, step: int, points: Sequence[Point]) -> None:
        """Write a line when it is time for one."""
        now = self._clock()
        if step < self._steps and self._shown_at is not None and now - self._shown_at < self._every_s:
            return
        self._shown_at = now
        shown = [f"step {step:,}/{self._steps:,}", *_figures(points), f"{self._pace.left(step)} left"]
        self._out.write("  ".join(shown) + "\n")
        self._out.flush()

    def evaluating(self, name: str) -> None:
        """Say nothing: the evaluation's values are in the stream."""

    def close(self) -> None:
        """Nothing to give back."""


class TerminalProgress:
    """One line that rich redraws a few times a second; log lines appear above it."""

    def __init__(self, steps: int, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
        )
        self._bar = Bar(*columns, console=Console(file=out), refresh_per_second=4, transient=False)
        self._steps = steps
        self._pace = _Pace(steps, clock)
        self._task: TaskID | None = None

    def started(self, step: int) -> None:
        """Count from `step`."""
        self._pace.start(step)
        self._task = self._bar.add_task("training", total=self._steps, completed=step, news="")
        self._bar.start()

    def updated(self, step: int, points: Sequence[Point]) -> None:
        """Move the bar; rich draws it when it is time."""
        if self._task is not None:
            news = "  ".join([*_figures(points), f"{self._pace.left(step)} left"])
            self._bar.update(self._task, description="training", completed=step, news=news)

    def evaluating(self, name: str) -> None:
        """Name what is going on; the next update names training again."""
        if self._task is not None:
            self._bar.update(self._task, description=name)

    def close(self) -> None:
        """Stop drawing, and leave the last line."""
        self._bar.stop()


def progress_for(steps: int, out: TextIO) -> Progress:
    """Return the kind of progress that `out` can show."""
    return TerminalProgress(steps, out) if out.isatty() else PlainProgress(steps, out)


class _Pace:
    """How long the rest will take, by what the steps of this attempt took."""

    def __init__(self, steps: int, clock: Callable[[], float]) -> None:
        self._steps = steps
        self._clock = clock
        self._first = 0
        self._started_at = clock()

    def start(self, step: int) -> None:
        self._first = step
        self._started_at = self._clock()

    def left(self, step: int) -> str:
        done = step - self._first
        if done <= 0:
            return "unknown"
        seconds = (self._clock() - self._started_at) / done * (self._steps - step)
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}"


def _figures(points: Sequence[Point]) -> list[str]:
    shown = []
    for name, value, _ in points:
        if name == "train/loss":
            shown.append(f"loss {value:.4f}")
        elif name.startswith("rate/"):
            shown.append(f"{value:,.0f} {name.removeprefix('rate/')}/s")
    return shown
