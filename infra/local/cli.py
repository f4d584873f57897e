"""`slugline up|down|status|logs|env`: the stack on one machine."""

import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from infra.local import logs as service_logs
from infra.local import stack
from infra.local.directory import BUCKET, DataDirectory, default_data_directory
from infra.local.environment import client_environment, metrics_url, prefect_url, s3_url
from infra.local.errors import StackError
from infra.local.services import SERVICES, service

if TYPE_CHECKING:
    from infra.local.ports import Ports

__all__ = ["Data", "app", "data_directory"]

app = typer.Typer()

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="SLUGLINE_DATA",
        metavar="DIR",
        help="The stack's data directory.",
        show_default="~/.local/share/slugline",
    ),
]


def data_directory(chosen: Path | None) -> DataDirectory:
    """The data directory of `--data`, else the default one."""
    return DataDirectory.at(chosen or default_data_directory(os.environ))


@app.command()
def up(
    *,
    data: Data = None,
    port_prefect: Annotated[
        int | None, typer.Option(metavar="PORT", help="Prefect's pages and API.", show_default="4200")
    ] = None,
    port_metrics: Annotated[
        int | None, typer.Option(metavar="PORT", help="The Metrics server.", show_default="4210")
    ] = None,
    port_s3: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="S3; the next eight and PORT + 10008 are taken too.", show_default="4220"
        ),
    ] = None,
) -> None:
    """Start everything on this machine: S3, Prefect, Metrics, a worker and rescue.

    Waits until each is well and prints where they are. Ports are remembered in the data directory.
    """
    directory = data_directory(data)
    ports = _with_options(directory, prefect=port_prefect, metrics=port_metrics, s3=port_s3)
    started = stack.up(directory, ports=ports, environ=os.environ, say=_say)
    if not started:
        _say("the stack is up already")
    for title, where in _links(directory).items():
        typer.echo(f"{title:<8} {where}")


@app.command()
def down(*, data: Data = None) -> None:
    """Stop everything. Runs in flight save first; the next `slugline up` resumes them."""
    directory = data_directory(data)
    killed = stack.down(directory, say=_say)
    _say("the stack is down" + (f"; {killed} process(es) had to be killed" if killed else ""))


@app.command()
def status(
    *,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """Show every service: its state, process, how long it is up, and where. Exit 1 unless all are well."""
    directory = data_directory(data)
    services = stack.status(directory)
    if as_json:
        typer.echo(msgspec.json.encode([_row(item) for item in services]).decode())
    else:
        typer.echo(f"{'SERVICE':<9} {'STATE':<9} {'PID':>8} {'UP':>9}  WHERE")
        for item in services:
            typer.echo(_line(item))
    if not any(item.state for item in services) and (left := stack.left_alone(directory)):
        _say(f"{left} process(es) live on unsupervised: slugline up starts anew, slugline down ends them")
    if any(item.problem for item in services):
        raise typer.Exit(1)


@app.command()
def logs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[SERVICE]", help="s3, prefect, metrics, worker or rescue; unset: all."),
    ] = None,
    *,
    data: Data = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written next.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many past lines of each.")] = 20,
) -> None:
    """Print the logs of one service, or of all."""
    directory = data_directory(data)
    names = [service(name).name] if name else [one.name for one in SERVICES]
    if not directory.path.is_dir():
        raise StackError(f"there is no stack in {directory.path}: start one with slugline up")
    paths = [(each, directory.log(each)) for each in names]
    width = max(map(len, names)) if len(names) > 1 else 0
    for each, path in paths:
        for line in service_logs.last_lines(path, lines):
            typer.echo(_prefixed(each, line, width))
    if follow:
        for each, line in service_logs.follow(paths):
            typer.echo(_prefixed(each, line, width))


@app.command()
def env(*, data: Data = None) -> None:
    """Print the exports with which a shell uses the stack: `eval "$(slugline env)"`."""
    for variable, value in sorted(client_environment(data_directory(data), os.environ).items()):
        typer.echo(f"export {variable}={shlex.quote(value)}")


def _with_options(directory: DataDirectory, **chosen: int | None) -> "Ports":
    """The ports remembered, with those of the options put in."""
    return msgspec.structs.replace(
        directory.ports(), **{name: port for name, port in chosen.items() if port is not None}
    )


def _links(directory: DataDirectory) -> dict[str, str]:
    ports = directory.ports()
    return {
        "Prefect": prefect_url(ports),
        "Metrics": metrics_url(ports) + "/dashboard",
        "S3": f"{s3_url(ports)}, bucket {BUCKET}",
        "data": str(directory.path),
    }


def _row(item: stack.ServiceStatus) -> dict[str, object]:
    state = dataclasses.asdict(item.state) if item.state else {"name": item.service.name, "state": "down"}
    return {**state, "well": item.problem is None, "problem": item.problem, "url": item.url}


def _line(item: stack.ServiceStatus) -> str:
    state = item.state
    pid = str(state.pid) if state and state.pid else "-"
    uptime = _duration(state.uptime_s) if state and state.uptime_s is not None else "-"
    word = state.state if state else "down"
    problem = f"  {item.service.title} {item.problem}" if item.problem and state else ""
    return f"{item.service.name:<9} {word:<9} {pid:>8} {uptime:>9}  {item.url or ''}{problem}".rstrip()


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(max(seconds, 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _prefixed(name: str, line: str, width: int) -> str:
    return f"{name:<{width}} | {line}" if width else line


def _say(text: str) -> None:
    typer.echo(text, file=sys.stderr)
