"""Telemetry: what the command that reads it takes, and what following the file costs.

    python benchmarks/telemetry.py [--only print ...]

`print`: `div telemetry` on 200,000 points of a real server, start-up included, beside a script over the file
alone, and the start-up of commands that only read. The last line is JSON, with `print_s` and `startup_s`
among others.
"""

# ruff: noqa: E402 - the repository's root comes before what is imported from it
from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import telemetry_following, telemetry_printing

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS: dict[str, Callable[[Path], dict[str, float]]] = {
    "print": telemetry_printing.measure,
    "follow": telemetry_following.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; repeat for more")
    given = parser.parse_args()
    figures: dict[str, float] = {}
    for part in given.only or PARTS:
        with tempfile.TemporaryDirectory() as name:
            figures |= PARTS[part](Path(name))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
