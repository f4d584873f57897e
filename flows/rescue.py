"""Rescue: finds runs that died and has them scheduled again. `python -m flows.rescue`, one on each host.

A run whose flow process, worker or host died has nobody left who could retry it. Who is dead: `flows.life`.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from prefect.settings import PREFECT_API_URL

from flows.flags import Flags
from flows.life import Patience
from flows.rescuer import Rescuer
from flows.run_page import report_end
from flows.server import connect
from runtime.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["main"]

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Look every `--poll-s` until SIGTERM or SIGINT; return the exit code."""
    parser = Flags("flows.rescue", __doc__)
    unset = Patience()
    for flag, default, what in (
        ("--poll-s", unset.poll_s, "seconds between two looks (5)"),
        ("--quiet-s", unset.quiet_s, "seconds without a sign of life (60)"),
        ("--pending-s", unset.pending_s, "seconds to start a flow process (60)"),
    ):
        parser.add_argument(flag, type=_seconds, default=default, metavar="SECONDS", help=what)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    patience = Patience(poll_s=options.poll_s, quiet_s=options.quiet_s, pending_s=options.pending_s)
    if not PREFECT_API_URL.value():
        parser.error("PREFECT_API_URL is not set: name the server's /api")
    rescuer = Rescuer(patience, os.environ, tell=lambda record, said: report_end(record, said, os.environ))
    _watch(rescuer, patience, stop)
    return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return seconds


def _watch(rescuer: Rescuer, patience: Patience, stop: threading.Event) -> None:
    away = ""
    while not stop.is_set():
        try:
            with connect(retries=0) as server:
                rescuer.look(server)
            away = ""
        except RunError as error:
            if str(error) != away:
                away = str(error)
                logger.warning("%s", error)
        except Exception:
            # One odd answer must not end what every other run relies on.
            logger.exception("this look failed; the next is in %g s", patience.poll_s)
        stop.wait(patience.poll_s)


if __name__ == "__main__":
    sys.exit(main())
