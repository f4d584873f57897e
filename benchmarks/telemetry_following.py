"""What following a telemetry file costs: lines through the rules on one core, and the tail's share of one."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from typing import TYPE_CHECKING

from runtime.telemetry.destination import MemoryDestination
from runtime.telemetry.rules import Rules
from runtime.telemetry.tail import Tail, TailThread

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["measure"]

LINES = 1_000_000
ROUNDS = 3
LINES_PER_S = 1_000
SECONDS = 20
SECRETS = {"TOKEN": "hf_0123456789abcdefghij", "KEY": "a-key-of-32-characters-0123456789"}


def measure(folder: Path) -> dict[str, float]:
    """Return the figures: lines per second, with and without secrets, and the tail's share of a core."""
    lines = list(_lines(LINES))
    rates = [_through_the_rules(lines) for _ in range(ROUNDS)]
    by_hand = [_by_hand(lines) for _ in range(ROUNDS)]
    print(f"{LINES:,} lines through the rules: {statistics.median(rates):,.0f} a second on one core")
    print(f"against json.loads alone: {statistics.median(by_hand):,.0f} a second")
    shares = {}
    for name, secrets in (("tail_cpu", {}), ("tail_cpu_masking", SECRETS)):
        shares[name] = round(_followed(folder / name, lines, secrets), 4)
        print(f"{name}: {shares[name]:.2%} of a core at {LINES_PER_S:,} lines a second")
    return {"lines_per_s": round(statistics.median(rates)), **shares}


def _lines(number: int) -> list[bytes]:
    chosen = random.Random(0)
    return [
        json.dumps(
            {
                "step": step,
                "loss": 2.5 / (1 + step / 1000) + chosen.random() / 10,
                "lr": 3e-4,
                "eval": {"loss": chosen.random()},
                "stage": "easy",
            }
        ).encode()
        for step in range(number)
    ]


def _through_the_rules(lines: list[bytes]) -> float:
    """Lines a second; a run is anew after its 200,000 points, so that each of them is kept."""
    started = time.process_time()
    for begin in range(0, len(lines), 200_000):
        rules = Rules()
        for line in lines[begin : begin + 200_000]:
            rules.take(line)
        assert rules.points == min(200_000, len(lines) - begin)
    return len(lines) / (time.process_time() - started)


def _by_hand(lines: list[bytes]) -> float:
    started = time.process_time()
    for line in lines:
        json.loads(line)
    return len(lines) / (time.process_time() - started)


def _followed(path: Path, lines: list[bytes], secrets: dict[str, str]) -> float:
    """Write lines at their rate and return the CPU of the tail's thread over the time it took.

    The destination is in memory: the server's part, and HTTP's, are the server's figures.
    """
    destination = MemoryDestination()
    thread = TailThread(Tail(path, destination, secrets=secrets))
    number = LINES_PER_S * SECONDS
    writer_s = 0.0
    started, used = time.monotonic(), time.process_time()
    thread.start()
    with path.open("ab", buffering=0) as file:
        for second_tenth in range(SECONDS * 10):
            begin = second_tenth * LINES_PER_S // 10
            before = time.thread_time()
            for line in lines[begin : begin + LINES_PER_S // 10]:
                os.write(file.fileno(), line + b"\n")
            writer_s += time.thread_time() - before
            time.sleep(max(0.0, started + (second_tenth + 1) / 10 - time.monotonic()))
    took = time.monotonic() - started
    share = (time.process_time() - used - writer_s) / took
    assert thread.finish(timeout_s=30)
    assert len(destination.points) == number, len(destination.points)
    return share
