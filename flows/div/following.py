"""What following a run takes: patience with a server that is away, and to see when nobody reads."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.client.errors import Unavailable

__all__ = ["WAIT_S", "Patience", "check_that_somebody_reads"]

WAIT_S = 20.0
"""For so long the server holds a question back that it has no news for."""


class Patience:
    """Waits between two tries to reach a server, up to ten minutes in a row; one line says so."""

    def __init__(
        self, prefix: str, *, patience_s: float = 600.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._patience_s = patience_s
        self._sleep = sleep
        self._prefix = prefix
        self.reached()

    def reached(self) -> None:
        """The server answered."""
        self._waited_s = 0.0
        self._pause_s = 0.25

    def wait(self, error: Unavailable) -> None:
        """Wait before the next try.

        Raises:
            Unavailable: `error`, when enough was waited.
        """
        if self._waited_s >= self._patience_s:
            raise error
        if not self._waited_s:
            sys.stderr.write(f"{self._prefix}: {error}; trying again\n")
        self._sleep(self._pause_s)
        self._waited_s += self._pause_s
        self._pause_s = min(2 * self._pause_s, 10.0)


def check_that_somebody_reads() -> None:
    """Notice a closed pipe before there is something to write (`div telemetry run-7 loss -f | head -1`).

    Raises:
        BrokenPipeError: whoever read standard output is gone.
    """
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)
    if any(events & select.POLLERR for _, events in watched.poll(0)):
        raise BrokenPipeError(os.strerror(32))
