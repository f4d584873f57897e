"""docs/metrics-command.md says what there is: every command and option, and lines that parse."""

import re
from typing import Any

import pytest
import typer.main

from infra.client.ending import run_and_exit
from infra.metrics.main import app
from infra.metrics.writers import COLUMNS
from tests.support.docs import ROOT, command_lines

TEXT = (ROOT / "docs" / "metrics-command.md").read_text()


def leaves(group: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """The commands of a group by their whole names."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= leaves(command, (*path, name))
        else:
            found[" ".join((*path, name))] = command
    return found


COMMANDS = leaves(typer.main.get_command(app))
OPTIONS = [
    (name, option)
    for name, command in COMMANDS.items()
    for parameter in command.params
    for option in (*parameter.opts, *parameter.secondary_opts)
    if option.startswith("--") and option != "--help"
]


def test_there_are_the_commands_of_every_group():
    assert len(COMMANDS) == 38
    assert {name.split()[0] for name in COMMANDS} == {
        "server",
        "auth",
        "key",
        "member",
        "folder",
        "experiment",
        "metric",
        "annotation",
        "view",
        "export",
        "import",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_stands_in_the_docs(name):
    assert f"`{name}" in TEXT or f"syvain-metrics {name}" in TEXT


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_every_option_stands_in_the_docs(command, option):
    assert re.search(rf"{option}\b", TEXT), command


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_of_an_export_stands_in_the_docs(column):
    assert f"`{column}`" in TEXT


@pytest.mark.parametrize(
    ("line", "arguments"), [pytest.param(*item, id=item[0]) for item in command_lines("syvain-metrics")]
)
def test_every_line_in_the_docs_parses(line, arguments):
    del line
    name = next(" ".join(arguments[:n]) for n in (3, 2, 1) if " ".join(arguments[:n]) in COMMANDS)
    given = arguments[len(name.split()) :]
    COMMANDS[name].make_context(name, given[: given.index("<")] if "<" in given else given)


def test_lines_are_parsed_at_all():
    assert len(list(command_lines("syvain-metrics"))) > 15


def test_every_exit_code_stands_in_the_docs():
    assert "130: Ctrl-C" in str(run_and_exit.__doc__)
    for number in (0, 1, 2, 75, 130):
        assert re.search(rf"^\| {number} \|", TEXT, re.MULTILINE)
