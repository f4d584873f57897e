"""What goes wrong with a command, each with the exit code it becomes.

A user's mistake is `Rejected` (2) and a server that cannot be reached `Unavailable` (75), as everywhere in
the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.errors import Rejected, RunError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Refused", "Rejected", "RunError", "Unavailable"]


class Refused(RunError):
    """The server was asked and said no (exit code 1). `code` unset: it gave none that a program reads.

    `stored` is what is there instead, where the request was to follow something else; unset: it does not say.
    """

    def __init__(
        self,
        text: str,
        *,
        status: int | None = None,
        code: str | None = None,
        stored: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.stored = stored
