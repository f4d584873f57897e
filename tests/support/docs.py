"""What the documentation says, and what the commands take: for the tests that hold one against the other."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer.main

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROOT", "Block", "blocks", "command_lines", "commands", "pages", "parse"]

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The fenced blocks of a page, those of one language if told."""
    found = [
        Block(page, match[2], re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE))
        for match in _FENCE.finditer(page.read_text())
    ]
    return [block for block in found if language in (None, block.language)]


def command_lines(program: str) -> Iterator[tuple[str, list[str]]]:
    """Every line `program ...` of the pages' shell blocks: where it stands, and its arguments."""
    for page in pages():
        for block in blocks(page, "sh"):
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while words and re.fullmatch(r"\w+=.*", words[0]):
                    del words[0]  # NAME=value before a command
                if words and Path(words[0]).name == program:
                    end = next(
                        (n for n, word in enumerate(words) if word in {"&&", "|", ">", "&"}), len(words)
                    )
                    yield f"{page.name}: {line.strip()}", words[1:end]


def commands(app: typer.Typer) -> dict[str, Any]:
    """The subcommands of an app by name."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def parse(app: typer.Typer, arguments: list[str]) -> None:
    """Parse a command line as the app would, without running it; its usage errors are raised."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("program", list(arguments), resilient_parsing=False)
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, rest, parent=context)
