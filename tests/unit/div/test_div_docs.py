"""docs/div.md says what there is: every command and flag of div, and lines that parse."""

import re
from typing import Any

import pytest

from flows.div.main import app
from infra.client.ending import run_and_exit
from runtime.telemetry.rules import Rules
from tests.support.docs import ROOT, command_lines, commands, parse

TEXT = (ROOT / "docs" / "div.md").read_text()
LINES = list(command_lines("div"))


def leaves(group, path=()):
    """The commands of a group, and of the groups in it, by their whole names."""
    found: dict[str, Any] = {}
    for name, command in group.items():
        inner = getattr(command, "commands", None)
        found |= leaves(inner, (*path, name)) if inner else {" ".join((*path, name)): command}
    return found


COMMANDS = leaves(commands(app))


def flags(command):
    return [
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("-") and flag != "--help"
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_stands_in_the_docs(name):
    assert f"div {name}" in TEXT


@pytest.mark.parametrize(
    ("command", "flag"), [(name, flag) for name, command in COMMANDS.items() for flag in flags(command)]
)
def test_every_flag_stands_in_the_docs(command, flag):
    assert re.search(rf"(?<![\w-]){flag}\b", TEXT), command


@pytest.mark.parametrize(("line", "arguments"), [pytest.param(*item, id=item[0]) for item in LINES])
def test_every_line_in_the_docs_parses(line, arguments):
    del line
    parse(app, arguments)


def test_the_examples_of_reading_are_all_there():
    lines = {" ".join(arguments) for _, arguments in LINES}
    assert {
        "telemetry run-7",
        "telemetry run-7 loss eval_loss",
        "telemetry run-7 loss --x epoch",
        "telemetry run-7 --csv",
        "telemetry run-7 loss -f",
    } <= lines


def test_the_lines_that_write_telemetry_write_a_point(tmp_path, monkeypatch):
    file = tmp_path / "telemetry.jsonl"
    monkeypatch.setenv("DIVERGENT_TELEMETRY_PATH", str(file))
    writing = TEXT.partition("## Writing telemetry")[2]
    (plain, ours) = re.findall(r"```python\n(.*?)```", writing, re.DOTALL)[:2]
    for block in (plain, ours):
        exec(block, {})
    rules = Rules()
    points = [rules.take(line) for line in file.read_bytes().splitlines()]
    assert points == [{"step": 120, "loss": 0.41, "lr": 3e-4}, {"step": 120, "train.loss": 0.41}]


def test_the_table_in_the_docs_is_what_is_printed():
    assert (ROOT / "tests/contract/telemetry/table.txt").read_text() in TEXT


@pytest.mark.parametrize("code", re.findall(r"(\d+):", str(run_and_exit.__doc__)))
def test_every_exit_code_of_reading_stands_in_the_docs(code):
    reading = TEXT.partition("## Reading it")[2].partition("\n## ")[0]
    assert re.search(rf"(?:code|is) {code}\b", reading)
