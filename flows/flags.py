"""Flags of the programs that services start: `python -m flows.rescue`, `python -m flows.deploy`."""

from __future__ import annotations

import argparse
from typing import NoReturn

__all__ = ["Flags"]


class Flags(argparse.ArgumentParser):
    """Takes each by its whole name. A mistake is one line on standard error, and exit code 2."""

    def __init__(self, program: str, about: str | None) -> None:
        super().__init__(prog=f"python -m {program}", description=about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse what was given."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")
