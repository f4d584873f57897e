"""The documentation says what there is: every command, option and setting, and nothing that is not."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from flows.cli import app as slugline
from runtime.cli.arguments import parse_arguments
from runtime.errors import Rejected, RunError, Superseded, Unavailable
from tests.support.docs import ROOT, blocks, command_lines, commands, pages, parse

TEXT = {page: page.read_text() for page in pages()}
ALL = "\n".join(TEXT.values())


def options(command) -> list[str]:
    return [name for parameter in command.params for name in parameter.opts if name.startswith("--")]


@pytest.mark.parametrize("name", commands(slugline))
def test_every_command_of_slugline_stands_in_the_docs(name):
    assert f"slugline {name}" in ALL


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (name, option)
        for name, command in commands(slugline).items()
        for option in options(command)
        if option != "--help"
    ],
)
def test_every_option_of_slugline_stands_in_the_docs(command, option):
    assert re.search(rf"{option}\b", TEXT[ROOT / "docs/operations.md"]), command


@pytest.mark.parametrize(
    ("line", "arguments"), [pytest.param(*item, id=item[0]) for item in command_lines("slugline")]
)
def test_every_slugline_line_in_the_docs_parses(line, arguments, tmp_path, monkeypatch):
    del line
    monkeypatch.chdir(tmp_path)
    parse(slugline, arguments)


@pytest.mark.parametrize(
    ("line", "arguments"), [pytest.param(*item, id=item[0]) for item in command_lines("sexpgpu")]
)
def test_every_sexpgpu_line_in_the_docs_parses(line, arguments):
    del line
    parse_arguments(arguments)


def test_every_flag_of_sexpgpu_stands_in_the_docs(capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["run", "--help"])
    flags = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)) - {"--help"}
    assert len(flags) > 10
    assert not {flag for flag in flags if not re.search(rf"{flag}\b", ALL)}


@pytest.mark.parametrize("page", TEXT, ids=lambda page: page.name)
def test_every_module_that_the_docs_start_is_there(page):
    for module in re.findall(r"python -m ((?:flows|runtime|infra)[\w.]*)", TEXT[page]):
        assert find_spec(module), module


@pytest.mark.parametrize("page", TEXT, ids=lambda page: page.name)
def test_every_make_verb_in_the_docs_is_in_the_makefile(page):
    verbs = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {
        verb for block in blocks(page, "sh") for verb in re.findall(r"^make (\w+)", block.text, re.MULTILINE)
    }
    used |= set(re.findall(r"`make (\w+)`", TEXT[page]))
    assert used <= verbs


@pytest.mark.parametrize("page", TEXT, ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\(([\w./-]*)(#[\w-]+)?\)", TEXT[page]):
        file = (page.parent / target) if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor[1:] in anchors, f"{page.name} links to {target}{anchor}"


def test_every_variable_of_ours_stands_in_the_docs():
    code = "\n".join(
        path.read_text() for room in ("flows", "runtime", "infra") for path in (ROOT / room).rglob("*.py")
    )
    internal = {"SLUGLINE_LIFELINE_FD", "SLUGLINE_STACK"}
    named = set(re.findall(r"\"((?:SLUGLINE|SYVAIN)_[A-Z_0-9]+)\"", code)) - internal
    assert not {name for name in named if name not in ALL}


def test_every_exit_code_stands_in_the_docs():
    codes = {error.exit_code for error in (RunError, Rejected, Superseded, Unavailable)}
    for code in codes:
        assert re.search(rf"^\| {code} \|", ALL, re.MULTILINE), code


def test_no_page_names_what_is_not_in_the_repository():
    for page, text in TEXT.items():
        for path in re.findall(r"`((?:flows|runtime|infra|tests|benchmarks|docs)/[\w/.-]+\.\w+)`", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_every_page_is_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text()
    assert not {page.name for page in pages()[1:] if f"(docs/{page.name}" not in readme}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_root_has_a_licence_a_changelog_and_exact_versions():
    for name in ("LICENSE", "CHANGELOG.md", "constraints.txt"):
        assert (ROOT / name).stat().st_size > 0
    pinned = [
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", line) for line in pinned)
    assert "torch==2.13.0" in pinned
    assert Path(ROOT / ".ci/run").stat().st_mode & 0o111
