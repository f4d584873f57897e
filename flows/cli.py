"""`slugline`: the stack on one machine, and the runs that Prefect schedules."""

import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run_output import Follow, Json, follow_run, plain, table, tell
from flows.stack import use_stack
from flows.train_command import train
from infra.client.ending import unusable
from infra.local import cli as local
from infra.local.errors import StackError
from runtime import __version__
from runtime.errors import RunError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "main"]

NO_NUMBER = r"Input should be a valid integer.*"
"""What the command line's library says of a text where a number belongs."""

app = typer.Typer(
    help="Training runs that survive being killed: the stack on this machine, and the runs on it.",
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
app.add_typer(local.app)
app.command()(train)


def _version(asked: bool) -> None:  # noqa: FBT001 - how an option's callback is called
    if asked:
        typer.echo(f"slugline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    pass


Slug = Annotated[str, typer.Argument(help="The run's slug.")]


def main(argv: "Sequence[str] | None" = None) -> None:
    """Run the command line and exit: 0 done, 1 the run failed, 2 a mistake of yours, 75 the surroundings."""
    sys.exit(_run(sys.argv[1:] if argv is None else list(argv)))


def _run(argv: list[str]) -> int:
    try:
        return int(app(argv, prog_name="slugline", standalone_mode=False) or 0)
    except typer.TyperException as error:
        # An empty text: the help was shown instead.
        message = re.sub(NO_NUMBER, "it must be a whole number", " ".join(error.format_message().split()))
        if message:
            typer.echo(f"slugline: {message}", err=True)
        return error.exit_code
    except (StackError, RunError) as error:
        typer.echo(f"slugline: {error}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except (BrokenPipeError, SystemExit) as end:
        # The library makes a SystemExit of a closed pipe where it prints the help.
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        # Whoever read has enough (`slugline logs | head`); nothing may be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        typer.echo(f"slugline: {unusable(error)}", err=True)
        return Unavailable.exit_code


@app.command()
def resume(
    slug: Slug,
    *,
    follow: Follow = False,
    as_json: Json = False,
    data: local.Data = None,
) -> None:
    """Schedule a run that ended (failed, cancelled) again: it goes on from its newest checkpoint."""
    use_stack(data)
    from flows import scheduling

    tell(scheduling.resume(slug), "scheduled again", follow=follow, as_json=as_json)


@app.command()
def cancel(
    slug: Slug,
    *,
    as_json: Json = False,
    data: local.Data = None,
) -> None:
    """Cancel a run. It saves within its notice, and stays cancelled until you resume it."""
    use_stack(data)
    from flows import scheduling

    done = scheduling.cancel(slug)
    if not done.begun and done.parameters is not None and done.parameters.slug is not None:
        from flows.records import record_of
        from flows.run_page import report_end

        said = {"state": "cancelled", "reason": "cancelled by the user"}
        report_end(record_of(done.parameters), said, os.environ)
    tell(done.run, "cancelling", follow=False, as_json=as_json)


@app.command(name="follow")
def follow_(
    slug: Slug,
    *,
    data: local.Data = None,
) -> None:
    """Print a run's log since it was last scheduled, until it is final; exit by how it ended."""
    use_stack(data)
    follow_run(slug, err=False)


@app.command(name="list")
def list_(
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="How many, newest first.")] = 50,
    as_json: Json = False,
    data: local.Data = None,
) -> None:
    """List the runs: slug, state, when, and where the checkpoints are."""
    use_stack(data)
    from flows.scheduling import list_runs

    runs = list_runs(limit=limit)
    if as_json:
        typer.echo(json.dumps([plain(run) for run in runs]))
        return
    for line in table(runs, columns=shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        typer.echo(line)


if __name__ == "__main__":
    main()
