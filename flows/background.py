"""A thread that does one thing every so often and never takes its process down with it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from runtime.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Every"]

logger = logging.getLogger(__name__)


class Every:
    """Call `tick` every `seconds`, on a thread of its own, from `start` until `stop`.

    What `tick` raises is logged, and the next one is tried all the same.
    """

    def __init__(self, seconds: float, tick: Callable[[], None], *, name: str) -> None:
        self._seconds, self._tick, self._name = seconds, tick, name
        self._stopping = threading.Event()
        # A daemon, so that a request that hangs does not hold up the end of the flow process.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first tick comes at once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Make a last tick and end."""
        self._stopping.set()

    def stop(self, *, timeout_s: float) -> None:
        """Do so and wait for it; after `timeout_s` the thread is left to itself."""
        self.ask_to_stop()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._once()
            self._stopping.wait(self._seconds)
        self._once()

    def _once(self) -> None:
        try:
            self._tick()
        except Unavailable as error:
            logger.info("%s: %s", self._name, error)
        except Exception:
            logger.exception("%s failed; it is tried again", self._name)
