"""`div telemetry`: the numbers of a run, as a table of its keys, as columns or as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.client.errors import Rejected, Unavailable
from infra.client.output import say, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flows.div.api import RunsApi
    from flows.div.following import Patience

__all__ = ["follow", "telemetry"]

_Summary = dict[str, Any]


def telemetry(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name or id.")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Print the points of these. Unset: a table of every key."),
    ] = None,
    *,
    x: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="The first column. Unset: step when the run writes it, else the point's place in the run.",
        ),
    ] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="The same with commas; without keys a column for every key.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help='Every point as one line of JSON, {"seq": 1, "data": {...}}.')
    ] = False,
    following: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing points as they arrive, until the run ends.")
    ] = False,
) -> None:
    """Print the numbers that a run writes. What was dropped of them is counted on standard error."""
    keys = keys or []
    _check(keys, x=x, as_csv=as_csv, as_json=as_json, following=following)
    from flows.div.api import connect
    from flows.div.following import Patience
    from flows.div.forms import SEQ, columns_form, json_form, summary_table

    with connect() as api:
        patience = Patience("telemetry")
        by_step = following and x is None and not as_json
        summary = _first_point(api, run, patience) if by_step else api.summary(run)
        written = [one["key"] for one in summary["keys"]]
        if x is None:
            first = "step" if "step" in written else None
        else:
            first = None if x == SEQ and SEQ not in written else x
        asked = [*([] if x is None or first is None else [first]), *keys]
        if not (keys or as_csv or as_json):
            _write(summary_table(summary["keys"]).encode())
        else:
            if as_json:
                form = json_form(asked)
            else:
                columns = [first, *(keys or [key for key in written if key != first])]
                header, form = columns_form(columns, "," if as_csv else "\t")
                _write(header)
            summary = follow(api, run, form, patience) if following else _print(api, run, form, summary)
    _say_what_is_missing(summary, run, asked)


def follow(api: RunsApi, run: str, form: Callable[[bytes], bytes], patience: Patience) -> _Summary:
    """Print points as they arrive until the run is over, each once; return the summary at its end.

    Raises:
        Unavailable: the server was away for too long.
        BrokenPipeError: nobody reads.
    """
    from flows.div.following import WAIT_S, check_that_somebody_reads

    seq, over = 0, False
    while True:
        try:
            if over:
                return api.summary(run)
            with api.points(run, after=seq, wait_s=WAIT_S) as points:
                for lines in points.chunks:
                    _write(form(lines))
                    seq += lines.count(b"\n")
            over = points.final and seq >= points.last_seq
            patience.reached()
        except Unavailable as error:
            patience.wait(error)
        check_that_somebody_reads()


def _first_point(api: RunsApi, run: str, patience: Patience) -> _Summary:
    """Return the summary once the run has a point, or is over without one."""
    from flows.div.following import WAIT_S, check_that_somebody_reads

    wait_s = 0.0  # at first the question is whether there is such a run at all
    while True:
        try:
            summary = api.summary(run, wait_s=wait_s)
            if summary["points"] or summary["final"]:
                return summary
            wait_s = WAIT_S
            patience.reached()
        except Unavailable as error:
            if not wait_s:
                raise
            patience.wait(error)
        check_that_somebody_reads()


def _print(api: RunsApi, run: str, form: Callable[[bytes], bytes], summary: _Summary) -> _Summary:
    with api.points(run) as points:
        for lines in points.chunks:
            _write(form(lines))
    return summary


def _check(keys: Sequence[str], *, x: str | None, as_csv: bool, as_json: bool, following: bool) -> None:
    if as_csv and as_json:
        raise Rejected("--csv and --json are two forms: give one of them")
    if x is not None and not (keys or as_csv):
        raise Rejected("--x names the first column, and without keys there is none: give KEYs, or --csv")
    if following and as_csv and not keys:
        raise Rejected("-f --csv needs KEYs: the columns are named before the first point")
    if following and not keys and not as_json:
        raise Rejected("-f needs KEYs, or --json: the table of every key is of one moment")


def _say_what_is_missing(summary: _Summary, run: str, asked: Sequence[str]) -> None:
    """Say on standard error that there are no points, or none of a key, and what was dropped."""
    from runtime.telemetry.rules import dropped_lines, is_key

    written = {one["key"] for one in summary["keys"]}
    if not summary["points"]:
        say(f"telemetry: {shown(run)} has written no points{'' if summary['final'] else ' yet'}")
    for key in dict.fromkeys(asked):
        if not is_key(key):
            say(f"telemetry: no point has {shown(key)!r}: a key is letters, digits, _ and - between dots")
        elif summary["points"] and key not in written:
            say(f"telemetry: no point has {key}: div telemetry {shown(run)} shows the keys that there are")
    for line in dropped_lines(summary["dropped"]):
        say(line)


def _write(text: bytes) -> None:
    """Print whole lines, now: whoever reads them over a pipe waits for them."""
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
