"""`sexpgpu check` as a process, with real projects in real folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.experiments import SMALL, write_project

if TYPE_CHECKING:
    from tests.support.forge import Forge

SEXPGPU = Path(sys.executable).with_name("sexpgpu")


def sexpgpu(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [SEXPGPU, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def identity(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    ended = sexpgpu("check", *arguments, "--json", cwd=cwd)
    assert ended.returncode == 0, ended.stderr
    decoded: dict[str, Any] = json.loads(ended.stdout)
    return decoded


def paths(found: dict[str, Any]) -> list[str]:
    return [source["path"] for source in found["sources"]]


def everything_under(root: Path) -> dict[str, tuple[float, bytes | None]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime, path.read_bytes() if path.is_file() else None)
        for path in root.rglob("*")
    }


PROJECT = {
    "train_it.py": "from flows.data import Rows, SIZE\nimport runtime.engine\nimport infra\n"
    + SMALL.replace("Ones()", "data.Workers(Rows(SIZE + infra.MORE), processes=2)").replace(
        "optim\n", "data, optim\n", 1
    ).replace("nn.Linear(3, 1)", "runtime.engine.make()"),
    "flows/__init__.py": "",
    "flows/data.py": """
        import torch
        from sexpgpu import Batch
        from runtime.engine import WIDTH
        from .rows import Size

        SIZE = Size(2).rows

        class Rows:
            def __init__(self, rows):
                self.rows = rows

            def batch(self, index):
                return Batch(torch.full((self.rows, WIDTH), float(index)), self.rows)
    """,
    "flows/rows.py": """
        from __future__ import annotations
        from dataclasses import dataclass

        @dataclass(frozen=True, slots=True)
        class Size:
            rows: int
    """,
    "runtime/engine.py": """
        import flows.data as back

        WIDTH = 3

        def make():
            import runtime.late
            return runtime.late.linear(WIDTH)
    """,
    "runtime/late.py": "from torch import nn\n\ndef linear(width):\n    return nn.Linear(width, 1)\n",
    "infra/__init__.py": "MORE = 1\nprint('to standard error, where it mixes with no answer')\n",
    "json.py": "raise RuntimeError('a file beside the entry must not shadow what our own code imports')\n",
}  # fmt: skip


def test_a_project_with_our_folder_names_is_checked_from_inside_it_and_nothing_is_touched(tmp_path: Path):
    """Its flows/, runtime/ and infra/ are its own; ours still work; and the folder stays as it was."""
    write_project(tmp_path, PROJECT)
    before = everything_under(tmp_path)
    inside = identity("train_it.py", cwd=tmp_path)
    assert paths(inside) == [
        "train_it.py",
        "flows/__init__.py",
        "flows/data.py",
        "flows/rows.py",
        "infra/__init__.py",
        "runtime/engine.py",
        "runtime/late.py",
        "<core>",
        "<std/data>",
        "<std/draws>",
        "<std/optim>",
        "<std/workers>",
    ]
    places: list[str | Path] = ["--location", tmp_path / "checkpoints", "--metrics", "jsonl:events.jsonl"]
    elsewhere = identity(tmp_path / "train_it.py", "--slug", "x", *places, cwd=tmp_path / "runtime")
    assert elsewhere == inside
    assert everything_under(tmp_path) == before


def test_a_project_with_our_folder_names_trains_from_inside_it_and_resumes(tmp_path: Path):
    write_project(tmp_path, PROJECT)
    for steps in ("4", "8"):
        command = ["run", "train_it.py", "--slug=x", "--location=kept", "--metrics=stdout", "--steps", steps]
        ended = sexpgpu(*command, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
    opened, resumed, *_, done = [json.loads(line) for line in ended.stdout.splitlines()]
    assert "runtime/engine.py" in paths(opened["metadata"])
    assert resumed["metadata"]["checkpoint"].endswith("kept/step-00000004")
    assert done["kind"] == "done"


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["missing.py"], "no experiment file at missing.py"),
        (["small.py", "--steps", "nine"], "--steps must be an integer from 1 to"),
        (["small.py", "--knob", "modee=hard"], "small.py:11: unknown knob 'modee', did you mean 'mode'?"),
        (["small.py", "--metrics", "jsonl:none/events"], "none is no directory: make it first"),
        (["small.py", "--slug", "s", "--resume", "4"], "no checkpoint of step 4 at"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2_and_touches_nothing(
    forge: Forge, tmp_path: Path, command: str, flags: list[str], message: str
):
    write_project(tmp_path, {"small.py": SMALL})
    ended = forge.run([command, *flags, "--location", "kept", "--metrics", "jsonl:events"], folder=tmp_path)
    assert ended.code == 2
    assert ended.out.read_text() == ""
    (line,) = ended.said.splitlines()
    assert line.startswith("sexpgpu: ")
    assert message in line
    assert everything_under(tmp_path).keys() == {"small.py", ended.out.name, ended.err.name}


def test_the_traceback_of_a_mistake_is_for_those_who_ask(forge: Forge, tmp_path: Path):
    write_project(tmp_path, {"broken.py": SMALL.replace("VARIANTS = ", "undefined\nVARIANTS = ")})
    ended = forge.run(["check", "broken.py", "--verbose"], folder=tmp_path)
    assert ended.code == 2
    assert 'broken.py", line 21, in <module>\n    undefined\n' in ended.said
    assert ended.said.endswith("sexpgpu: broken.py:21: NameError: name 'undefined' is not defined\n")


def test_a_set_of_texts_has_one_order_in_every_process(tmp_path: Path):
    """A vocabulary made with `set` was another one in each attempt: the resume trained on wrong tokens."""
    words = "print(sorted(range(40), key=[hash(str(n)) for n in range(40)].__getitem__))\n"
    write_project(tmp_path, {"words.py": words + SMALL})
    one, another = (sexpgpu("check", "words.py", cwd=tmp_path).stderr for _ in range(2))
    assert one == another
    assert one.startswith("[")
