"""The command `syvain-metrics`: its groups of commands, and what an error becomes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import typer

from infra.metrics.commands import (
    annotation,
    auth,
    experiment,
    exporting,
    folder,
    importing,
    key,
    member,
    metric,
    server,
    view,
)
from runtime.errors import RunError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "main"]

app = typer.Typer(
    help="The Metrics server: run it, and read and arrange what it keeps.",
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
for _name, _module in {
    "server": server,
    "auth": auth,
    "key": key,
    "member": member,
    "folder": folder,
    "experiment": experiment,
    "metric": metric,
    "annotation": annotation,
    "view": view,
}.items():
    app.add_typer(_module.app, name=_name, no_args_is_help=True)
app.command(name="export")(exporting.export)
app.command(name="import")(importing.import_)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line (unset: the process's own) and exit.

    0: done. 1: the server said no. 2: a mistake of yours. 75: the server cannot be reached. 130: Ctrl-C.
    """
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # a TextIO has it; tests too
    sys.exit(_run(sys.argv[1:] if argv is None else list(argv)))


def _run(argv: list[str]) -> int:
    try:
        code = int(app(argv, prog_name="syvain-metrics", standalone_mode=False) or 0)
        sys.stdout.flush()
    except typer.TyperException as error:
        # An empty text: the help was shown instead.
        return _end(error.format_message(), error.exit_code)
    except RunError as error:
        return _end(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except (BrokenPipeError, SystemExit) as end:
        # The library makes a SystemExit of a closed pipe.
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        return _nobody_reads()
    except OSError as error:
        # A file of the user's, or standard output where a disk is full.
        if error.filename is None:
            _nobody_reads()
        what = "standard output" if error.filename is None else os.fsdecode(error.filename)
        return _end(f"{what} cannot be used: {error.strerror or error}", Unavailable.exit_code)
    return code


def _nobody_reads() -> int:
    """Whoever read has enough (`... | head`), which is no error. Nothing may be flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _end(message: str, code: int) -> int:
    text = " ".join(message.split())
    if text:
        sys.stderr.write(f"syvain-metrics: {text}\n")
    return code


if __name__ == "__main__":
    main()
