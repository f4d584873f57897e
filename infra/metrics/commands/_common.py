"""What the commands share: the connection, and the options that mean the same everywhere."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.client.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.metrics.api import Api

__all__ = [
    "ExperimentName",
    "FolderName",
    "Json",
    "Newest",
    "Where",
    "Yes",
    "agreed",
    "checked_role",
    "conditions",
    "connect",
    "json_object",
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ExperimentName = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Its slug or its id.")]
FolderName = Annotated[
    str, typer.Argument(metavar="FOLDER", help="A path such as /lr-sweep, or an id; / is the root.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY[=VALUE]", help="Only partitions with this metadata; repeat for more."),
]
Newest = Annotated[
    bool,
    typer.Option("--newest", help="Where attempts repeated a step, only the newest attempt's copy."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]


def connect() -> Api:
    """Return the connection that the environment, else the saved login, describes."""
    from infra.metrics.api import Api
    from runtime.events.syvain.settings import metrics_settings

    return Api(metrics_settings(os.environ))


def agreed(question: str, *, yes: bool) -> None:
    """Ask before something is lost.

    Raises:
        Rejected: there is nobody to ask, and `--yes` was not given.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Rejected(f"{question} Nobody is there to answer: give --yes to go on")
    typer.confirm(question, abort=True, err=True)


def checked_role(text: str) -> str:
    """Return a role.

    Raises:
        Rejected: there is none of this name.
    """
    if text not in {"viewer", "member", "owner"}:
        raise Rejected(f"the role must be viewer, member or owner, got {text!r}")
    return text


def json_object(text: str, what: str) -> Mapping[str, Any]:
    """Return the JSON object that a text holds.

    Raises:
        Rejected: it holds something else.
    """
    import json

    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{what} must be a JSON object, got {text[:60]!r}: {error}") from error
    if not isinstance(value, dict):
        raise Rejected(f"{what} must be a JSON object, got {text[:60]!r}")
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def conditions(given: list[str] | None) -> list[dict[str, str]]:
    """Return the wire's conditions for each `KEY` (it is there) and `KEY=VALUE`."""
    found = []
    for text in given or ():
        key, equals, value = text.partition("=")
        found.append({"metadataKey": key, "metadataValue": value} if equals else {"metadataKey": key})
    return found
