"""`div run`: this directory is shipped, and a command runs in it on a worker."""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.div.logs import Follow  # noqa: TC001 - Typer reads the annotations
from infra.client.errors import Refused, Rejected, RunError, Unavailable
from infra.client.output import print_fields, say, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flows.div.api import RunsApi
    from flows.ship_parameters import ShipParameters
    from flows.shipping import Tree

__all__ = ["OPTIONS", "EndSeen", "run"]

COMMAND = "div run"
UNREADABLE = ("telemetry_unreadable", "checks_unreadable")
LAYOUT, CHECKS = "telemetry.toml", "checks.toml"
ENDED = {"Completed": "done", "Cancelled": "cancelled"}
PATIENCE = 2
OPTIONS = {"allow_interspersed_args": False}
"""What comes after the first word of the command is the command's."""


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The program to run, and its arguments.")
    ],
    *,
    slug: Annotated[
        str | None, typer.Option(metavar="SLUG", help="The run's name. Unset: run-1, run-2, ...")
    ] = None,
    folder: Annotated[
        str | None, typer.Option(metavar="PATH|ID", help="The folder in Metrics. Unset: the root.")
    ] = None,
    telemetry: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Lays out the Telemetry tab. Unset: {LAYOUT}, if there is one."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Give the command this secret; repeat for more."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="How many GPUs to lease. Unset: one where there are any."),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Set a variable; repeat for more.")
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="Run at these times (UTC) instead of now; --slug names it."),
    ] = None,
    retries: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many failures of the command are tried again.")
    ] = 0,
    following: Follow = False,
) -> None:
    """Ship this directory and run COMMAND in it on a worker, until it is done."""
    if cron is not None and following:
        raise Rejected("--follow follows one run, and --cron schedules many: leave one of them out.")
    if cron is not None and slug is None:
        raise Rejected("--cron needs --slug: its runs are called <slug>-<time>.")
    root = Path.cwd()
    asked = {
        "command": tuple(command),
        "slug": slug,
        "folder": folder,
        "telemetry": _text("telemetry", telemetry or root / LAYOUT, must_be=telemetry is not None),
        "checks": _text("checks", root / CHECKS, must_be=False),
        "env": _variables(env or ()),
        "secrets": tuple(secret or ()),
        "gpus": gpus,
        "retries": retries,
        "cron": cron,
    }
    from flows.ship_parameters import ShipParameters

    ShipParameters(tree="0" * 64, **_parameters(asked))  # a mistake shows before anybody is asked anything
    from flows.stack import use_stack

    use_stack()
    from flows.div.api import connect

    with connect() as api:
        _check_run(api, asked)
        parameters, tree = _ship(root, asked)
        if cron is not None:
            _schedule_cron(parameters, cron)
            return
        made = _create(api, parameters, tree)
        name = str(made["name"])
        page = _schedule(api, name, parameters)
        _print({"run": name, "page": made["page"], "prefect": page}, following=following)
        if following:
            from flows.div.logs import follow

            code = follow(api, name, attempt=made["attempt"] + 1, when_quiet=EndSeen(api, name))
            raise typer.Exit(code)


def _text(name: str, path: Path, *, must_be: bool) -> str | None:
    """Return the text of one of the two files, which the server reads: it takes no other than UTF-8."""
    from runtime.telemetry.layout import LayoutError, file_text

    try:
        return file_text(name, path.read_bytes())
    except FileNotFoundError:
        if path.is_symlink():
            raise Rejected(f"{path} cannot be read (a link that leads nowhere): name a file.") from None
        if must_be:
            raise Rejected(
                f"there is no file {path}: name the one that lays out the run's telemetry."
            ) from None
        return None
    except LayoutError as error:
        raise Rejected(str(error)) from error
    except OSError as error:
        raise Rejected(f"{path} cannot be read ({error.strerror}): name a file.") from error


def _variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise Rejected(f"--env takes K=V, got {text!r}.")
        found[name] = value
    return found


def _check_run(api: RunsApi, asked: Mapping[str, Any]) -> None:
    """Have the server read the two files and find the folder before anything is shipped."""
    with _refusals():
        api.check_run(folder=asked["folder"], telemetry=asked["telemetry"], checks=asked["checks"])


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        if refused.code in UNREADABLE:
            raise Rejected(f"the API refused the run: {refused}") from refused
        raise


def _ship(root: Path, asked: Mapping[str, Any]) -> tuple[ShipParameters, Tree]:
    """Ship the directory, once it is clear that the run can be scheduled."""
    from flows.schedules import check_cron
    from flows.scheduling import check_schedule
    from flows.secret_values import require_secrets
    from flows.ship_parameters import ShipParameters
    from flows.shipping import ship
    from flows.trees import trees_location
    from runtime.checkpoints.location import open_store

    trees = trees_location(os.environ)
    if asked["cron"] is not None:
        check_cron(asked["cron"])
    check_schedule(None if asked["cron"] else asked["slug"], command=COMMAND)
    require_secrets(asked["secrets"])
    tree, uploaded = ship(root, open_store(trees, os.environ))
    files = sum(entry.kind in ("file", "executable") for entry in tree.entries)
    how = "shipped" if uploaded else "shipped before"
    say(f"div: {how}: {files} file{'s' * (files != 1)}, {tree.size_bytes:,} bytes, {tree.digest[:12]}")
    if not trees.startswith("s3://"):
        say(f"div: {shown(trees)} is a directory of this host: only a worker here can take the run")
    return ShipParameters(tree=tree.digest, trees=trees, **_parameters(asked)), tree


def _parameters(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if name != "cron"}


def _create(api: RunsApi, parameters: ShipParameters, tree: Tree) -> dict[str, Any]:
    from flows.trees import listed_files

    new = {
        "slug": parameters.slug,
        "folder": parameters.folder,
        "telemetry": parameters.telemetry,
        "checks": parameters.checks,
        "command": list(parameters.command),
        "tree": parameters.tree,
        "files": listed_files(tree.entries),
        "kind": "command",
    }
    with _refusals():
        return api.create(new)


def _schedule(api: RunsApi, name: str, parameters: ShipParameters) -> str:
    """Schedule the run and return its page in Prefect; where that fails, its own page says so."""
    from flows.scheduling import Live, schedule

    try:
        view = schedule(replace(parameters, slug=name))
    except Live:  # somebody else scheduled it in this moment: its page is theirs
        raise
    except RunError as error:
        with suppress(RunError):
            api.tell(name, {"state": "failed", "reason": f"not scheduled: {error}"})
        raise
    with suppress(Unavailable):  # the flow process says it, too
        api.tell(name, {"flow_run_id": view.flow_run_id})
    return view.page


def _schedule_cron(parameters: ShipParameters, cron: str) -> None:
    from flows.schedules import schedule_cron
    from flows.scheduling import DEPLOYMENTS

    page = schedule_cron(
        parameters, title=shlex.join(parameters.command), cron=cron, template=DEPLOYMENTS[COMMAND]
    )
    print_fields({"runs": f"{parameters.slug}-<time>", "times": f"{cron} (UTC)", "prefect": page})


def _print(fields: Mapping[str, str], *, following: bool) -> None:
    """On standard output, unless that is where the log goes."""
    if not following:
        print_fields(fields)
        return
    for name, value in fields.items():
        say(f"{name:<7}  {shown(value)}")


class EndSeen:
    """Looks, while a run says nothing, whether Prefect knows that it is over, and tells its page.

    A flow process that cannot even start says nothing to anybody else.
    """

    def __init__(self, api: RunsApi, name: str) -> None:
        self._api, self._name, self._seen = api, name, 0

    def __call__(self) -> None:
        """Look once."""
        from flows.scheduling import find_run

        with suppress(Rejected, Unavailable):
            view = find_run(self._name)
            # Its own last words may be on their way.
            self._seen = 0 if view.live else self._seen + 1
            if self._seen > PATIENCE:
                state = ENDED.get(view.state, "failed")
                reason = None if state == "done" else view.message or view.state
                self._api.tell(self._name, {"state": state, "reason": reason})
