"""What goes wrong with a command, each with the exit code it becomes.

A user's mistake is `Rejected` (2) and a server that cannot be reached `Unavailable` (75), as everywhere in
the runtime.
"""

from __future__ import annotations

from runtime.errors import Rejected, RunError, Unavailable

__all__ = ["Refused", "Rejected", "RunError", "Unavailable"]


class Refused(RunError):
    """The server was asked and said no (exit code 1). `code` unset: it gave none that a program reads."""

    def __init__(self, text: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
