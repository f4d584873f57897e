"""runtime.cli.main: what a run says of itself before it starts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from runtime.cli.main import main
from tests.support.experiments import SMALL, write_project

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.forge import Forge


def warnings(forge: Forge, folder: Path, *flags: str) -> list[str]:
    done = forge.run(["run", "small.py", "--steps=2", "--device=cpu", *flags], folder=folder)
    assert done.code == 0, done.said
    return [line for line in done.said.splitlines() if line.startswith("WARNING")]


def test_a_run_that_keeps_nothing_says_so_and_names_the_flag(forge: Forge, tmp_path: Path):
    write_project(tmp_path, {"small.py": SMALL})
    assert warnings(forge, tmp_path) == [
        "WARNING: nothing of this run is kept: --location names where its checkpoints go"
    ]
    assert warnings(forge, tmp_path, "--location", str(tmp_path / "at")) == []


def test_paths_of_flags_are_those_of_where_the_command_began(forge: Forge, tmp_path: Path):
    source = f"import os\nos.chdir({str(tmp_path / 'elsewhere')!r})\n{SMALL}"
    (tmp_path / "elsewhere").mkdir()
    write_project(tmp_path, {"small.py": source})
    arguments = ["run", "small.py", "--steps=2", "--device=cpu", "--location=at", "--metrics=jsonl:events"]
    done = forge.run(arguments, folder=tmp_path, env={"DIVERGENT_TELEMETRY_PATH": "telemetry"})
    assert done.code == 0, done.said
    assert (tmp_path / "at" / "run.json").exists()
    assert (tmp_path / "events").exists()
    assert (tmp_path / "telemetry").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_is_gone_is_the_surroundings_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["check", "small.py"]) == 75
    assert capsys.readouterr().err == "sexpgpu: the working directory is gone: change to one that exists\n"


def test_a_refused_file_s_thread_does_not_keep_the_process():
    program = """if True:
        import sys, threading
        from runtime.cli import main as command
        def refused(*_, **__):
            threading.Thread(target=threading.Event().wait, name="logger").start()
            return 2
        command.THREADS_END_WITHIN_S, command._main = 0.05, refused
        sys.exit(command.main())
    """
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (
        2,
        "ending without threads of the file that do not end: logger\n",
    )
