"""`syvain-metrics export`: points of many experiments as one file."""

from __future__ import annotations

import os
import sys
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from infra.client.errors import Rejected, Unavailable
from infra.client.output import say
from infra.metrics.commands._common import Newest, Where, conditions, connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from infra.metrics.api import Api
    from infra.metrics.find import Placed
    from infra.metrics.writers import Writer

__all__ = ["export"]


def export(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXPERIMENT]...", help="Slugs, ids, or globs of slugs such as 'lr-*'."),
    ] = None,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file; - is standard output.")
    ],
    folder: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="Everything under this path or id; repeat for more."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this metric; repeat for more.")
    ] = None,
    where: Where = None,
    newest: Newest = False,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="F", help="parquet, csv or jsonl. Unset: by the file's name."),
    ] = None,
) -> None:
    """Write the points of experiments, one row a point, to Parquet, CSV or JSON lines."""
    from infra.metrics.find import select

    kind = _format(output, format_)
    _check_place(output)
    if not experiments and not folder:
        raise Rejected(
            "nothing to export was named: give slugs, ids or globs, or --folder (/ for everything)"
        )
    filters = conditions(where)
    with connect() as api:
        chosen = select(api, experiments or (), folder or ())
        with _opened(output) as file:
            num_points = _write(api, chosen, file, kind, names=metric, where=filters, newest=newest)
    if output != "-":
        plural = "" if len(chosen) == 1 else "s"
        say(f"{num_points:,} points of {len(chosen):,} experiment{plural} in {output}")


def _write(
    api: Api,
    chosen: Sequence[Placed],
    file: IO[bytes],
    kind: str,
    *,
    names: list[str] | None,
    where: list[dict[str, str]],
    newest: bool,
) -> int:
    from infra.metrics.progress import progress
    from infra.metrics.writers import writer

    out: Writer = writer(kind, file)
    num_points = 0
    with closing(out), progress("exporting", len(chosen)) as show:
        for experiment in chosen:
            for frame in api.points(experiment.id, names=names, where=where, newest=newest):
                out.write(experiment, frame)
                num_points += len(frame.data.value)
                show(0, f"{num_points:,} points")
            show(1, f"{num_points:,} points")
    return num_points


def _format(output: str, given: str | None) -> str:
    from infra.metrics.writers import FORMATS

    name = given if given is not None else Path(output).suffix.lower().lstrip(".")
    if name not in FORMATS:
        what = f"--format must be one of {', '.join(sorted(FORMATS))}"
        raise Rejected(
            f"{what}, got {given!r}" if given else f"{what}: {output!r} does not end in one of them"
        )
    if name == "parquet" and output == "-":
        raise Rejected("Parquet needs a file: give --output FILE, or --format csv or jsonl")
    return name


def _check_place(output: str) -> None:
    """Refuse a place where no file can stand: what is a pipe, a device or a directory is not replaced."""
    path = Path(output)
    if output != "-" and ((path.exists() and not path.is_file()) or not path.parent.is_dir()):
        raise Rejected(
            f"--output must be a file in a directory that is there (- is standard output), got {output!r}"
        )


@contextmanager
def _opened(output: str) -> Iterator[IO[bytes]]:
    """Open the file to write. It takes its name when it is whole; until then an older one stands there."""
    if output == "-":
        yield sys.stdout.buffer
        return
    path = Path(output)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise Unavailable(f"{output} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # what cannot be written cannot be cleared away either
            temporary.unlink()
