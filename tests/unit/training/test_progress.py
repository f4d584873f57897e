from __future__ import annotations

import io
import logging
import re
import sys

from runtime.cli.main import Log
from runtime.training.progress import PlainProgress, TerminalProgress, progress_for

POINTS = [
    ("train/loss", 1.23456, {"stage": "a"}),
    ("mine", 2.0, {}),
    ("rate/tokens", 12345.6, {"stage": "a"}),
]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_plain_line_comes_first_then_every_few_seconds_then_last():
    out, clock = io.StringIO(), Clock()
    progress = PlainProgress(100, out, clock=clock)
    progress.started(0)
    for step in range(1, 101):
        clock.now += 0.5
        progress.updated(step, POINTS)
    steps = [line.split("/")[0] for line in out.getvalue().splitlines()]
    assert steps == [f"step {step}" for step in (1, 11, 21, 31, 41, 51, 61, 71, 81, 91, 100)]


def test_a_line_says_steps_loss_rate_and_time_left_counted_from_where_the_attempt_began():
    out, clock = io.StringIO(), Clock()
    progress = PlainProgress(10_000, out, clock=clock)
    progress.started(4_000)
    clock.now = 2_000.0
    progress.updated(5_000, POINTS)
    assert out.getvalue() == "step 5,000/10,000  loss 1.2346  12,346 tokens/s  2:46:40 left\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_live_line_and_a_pipe_gets_plain_ones():
    assert isinstance(progress_for(10, Terminal()), TerminalProgress)
    assert isinstance(progress_for(10, io.StringIO()), PlainProgress)


def test_a_live_line_shows_the_same_figures():
    out = Terminal()
    progress = TerminalProgress(10, out)
    progress.started(0)
    progress.evaluating("held-out")
    progress.updated(10, POINTS)
    progress.close()
    assert "10/10" in out.getvalue()
    assert "loss 1.2346" in out.getvalue()
    assert "12,346 tokens/s" in out.getvalue()


def test_a_log_line_stands_above_the_live_line_and_not_beside_it(monkeypatch):
    out, log, said = Terminal(), Log(), logging.LogRecord("x", logging.WARNING, "", 0, "news", None, None)
    monkeypatch.setattr(sys, "stderr", out)
    progress = TerminalProgress(10, out)
    progress.started(0)
    log.handle(said)
    progress.close()
    log.handle(said)
    lines = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", out.getvalue()).splitlines()
    assert lines.count("news") == 2
