"""The command `sexpgpu`: reads argv and the environment, and hands over to what does the work."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runtime.cli.arguments import parse_arguments
from runtime.cli.request import read_request
from runtime.errors import RunError
from runtime.training.interrupts import Interrupted, Interrupts, lifeline_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.cli.request import RunRequest

__all__ = ["main"]

THREADS_END_WITHIN_S = 2.0
"""For threads of the file, once its run has ended and everything is stored."""

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sexpgpu` with `argv` (unset: the process's own) and return its exit code."""
    try:
        given = parse_arguments(sys.argv[1:] if argv is None else argv)
        _configure_logging(verbose=given.verbose)
        request = read_request(given, os.environ, now=datetime.now(UTC))
        if argv is None:
            _fix_hash_seed()
        return _check(request) if given.command == "check" else _run(request)
    except (RunError, Interrupted) as error:
        log.debug("what was raised:", exc_info=error)
        _say(f"sexpgpu: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _fix_hash_seed() -> None:
    """Begin this process anew where the order of a set of texts is drawn anew by each process.

    A vocabulary that a file makes with `set` would be another one in each attempt, and its resume nonsense.
    """
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program


def _run(request: RunRequest) -> int:
    # In force before torch is imported, which takes seconds.
    with Interrupts(notice_s=request.notice_s, lifeline=lifeline_from(os.environ)) as interrupts:
        from runtime.training.run import execute

        code = execute(request, interrupts)
    _end_without(_threads_left(), code)
    return code


def _threads_left() -> list[str]:
    """Wait for the threads that the file has started, and return the names of those that do not end."""
    deadline = time.monotonic() + THREADS_END_WITHIN_S
    own = threading.current_thread()
    threads = [thread for thread in threading.enumerate() if thread is not own and not thread.daemon]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]


def _end_without(threads: Sequence[str], code: int) -> None:
    """End the process where Python would wait for `threads` for ever, and a GPU with it."""
    if threads:
        log.warning("ending without threads of the file that do not end: %s", ", ".join(threads))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _check(request: RunRequest) -> int:
    from runtime.cli.check import check

    sys.stdout.write(check(request, os.environ) + "\n")
    return 0


def _configure_logging(*, verbose: bool) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("runtime").setLevel(logging.DEBUG if verbose else logging.INFO)


def _say(text: str) -> None:
    sys.stderr.write(" ".join(text.split()) + "\n")
