"""The command `sexpgpu`: reads argv and the environment, and hands over to what does the work."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from runtime.cli.arguments import parse_arguments
from runtime.cli.request import read_request
from runtime.errors import RunError, Unavailable
from runtime.training.interrupts import Interrupted, Interrupts, lifeline_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.cli.request import RunRequest

__all__ = ["Log", "main"]

THREADS_END_WITHIN_S = 2.0
"""For threads of the file, once its run has ended and everything is stored."""

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sexpgpu` with `argv` and return its exit code; `argv` unset: the process's own, ended by that."""
    if argv is not None:
        return _main(argv, is_process=False)
    ending = _Ending()
    ending.code = _main(sys.argv[1:], is_process=True)
    sys.stdout = sys.stderr  # for what is printed at the exit
    _end_without(_threads_left(), ending.code)
    return ending.code


class Log(logging.StreamHandler[TextIO]):
    """Writes to what standard error is by then: a live line takes its place, and shows lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.stream = sys.stderr
        super().emit(record)


class _Ending:
    """Ends the process when all else that was to be done at its exit has been.

    The interpreter's own clearing up comes after that and takes a tenth of a second or more, with torch
    loaded: a signal would meet no handler any more there, and replace the exit code.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        atexit.register(self._leave)  # before all others, which is to be called last

    def _leave(self) -> None:
        if self.code is not None:
            _leave(self.code)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _main(argv: Sequence[str], *, is_process: bool) -> int:
    try:
        given = parse_arguments(argv)
        _configure_logging(verbose=given.verbose)
        _require_folder()
        request = read_request(given, os.environ, now=datetime.now(UTC))
        if is_process:
            _fix_hash_seed()
        answer = sys.stdout
        with redirect_stdout(sys.stderr):  # for what the file prints, and all that it imports
            if given.command == "check":
                return _check(request, answer)
            return _run(request, answer, is_process=is_process)
    except (RunError, Interrupted) as error:
        log.debug("what was raised:", exc_info=error)
        _say(f"sexpgpu: {error}")
        return error.exit_code
    except OSError as error:
        log.debug("what was raised:", exc_info=error)
        _say(f"sexpgpu: {error}")
        return Unavailable.exit_code
    except KeyboardInterrupt:
        return 130


def _require_folder() -> None:
    """Refuse to run in a folder that somebody has deleted: torch's libraries would end the process."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise Unavailable("the working directory is gone: change to one that exists") from None


def _fix_hash_seed() -> None:
    """Begin this process anew where the order of a set of texts is drawn anew by each process.

    A vocabulary that a file makes with `set` would be another one in each attempt, and its resume nonsense.
    """
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program


def _run(request: RunRequest, answer: TextIO, *, is_process: bool) -> int:
    lifeline = lifeline_from(os.environ)
    # In force before torch is imported, which takes seconds.
    with Interrupts(notice_s=request.notice_s, lifeline=lifeline, until_exit=is_process) as interrupts:
        from runtime.training.run import execute

        return execute(request, interrupts, answer=answer)


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
        _leave(code)


def _check(request: RunRequest, answer: TextIO) -> int:
    from runtime.cli.check import check

    answer.write(check(request, os.environ) + "\n")
    answer.flush()
    return 0


def _configure_logging(*, verbose: bool) -> None:
    logging.basicConfig(handlers=[Log()], level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("runtime").setLevel(logging.DEBUG if verbose else logging.INFO)


def _say(text: str) -> None:
    with suppress(OSError):  # nobody reads it any more: the exit code says it too
        sys.stderr.write(" ".join(text.split()) + "\n")
