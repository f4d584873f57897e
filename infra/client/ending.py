"""How a command ends: what an error becomes, and a reader that went away."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import typer

from runtime.errors import RunError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run_and_exit", "unusable"]

_FULL = {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC}
"""Of a write whose file nobody names: standard output."""


def run_and_exit(app: typer.Typer, program: str, argv: Sequence[str] | None) -> None:
    """Run a command line (unset: the process's own) and exit.

    What went wrong is one line on standard error, after the program's name. 0: done. 1: the server said no.
    2: a mistake of yours. 75: the server cannot be reached. 130: Ctrl-C. A command may exit as it likes.
    """
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # a TextIO has it; tests too
    sys.exit(_run(app, program, sys.argv[1:] if argv is None else list(argv)))


def _run(app: typer.Typer, program: str, argv: list[str]) -> int:
    try:
        code = int(app(argv, prog_name=program, standalone_mode=False) or 0)
        sys.stdout.flush()
    except typer.TyperException as error:
        # An empty text: the help was shown instead.
        return _end(program, error.format_message(), error.exit_code)
    except RunError as error:
        return _end(program, str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except (BrokenPipeError, SystemExit) as end:
        # The library makes a SystemExit of a closed pipe.
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        return _nobody_reads()
    except OSError as error:
        if error.filename is None and error.errno in _FULL:
            _nobody_reads()
        return _end(program, unusable(error), Unavailable.exit_code)
    return code


def unusable(error: OSError) -> str:
    """Say in one line what of the surroundings a command could not use."""
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}"
    if error.errno == errno.ENOENT:
        return "the working directory is gone: change to one that exists"
    if error.errno in _FULL:
        return f"standard output cannot be used: {error.strerror}"
    return error.strerror or str(error)


def _nobody_reads() -> int:
    """Whoever read has enough (`... | head`), which is no error. Nothing may be flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _end(program: str, message: str, code: int) -> int:
    text = " ".join(message.split())
    if text:
        sys.stderr.write(f"{program}: {text}\n")
    return code
