"""A `PYTHONPATH` whose folders are called like our packages keeps nothing of ours from starting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.experiments import SMALL, write_project
from tests.support.shadows import ROOT, shadows

BIN = Path(sys.executable).parent


def run(*command: str | Path, path: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_a_run_is_checked_trained_and_resumed_with_modules_of_the_path(tmp_path):
    path = shadows(tmp_path / "lib")
    (tmp_path / "lib" / "helper.py").write_text("STEPS = 2\n")
    write_project(tmp_path / "project", {"small.py": "import helper\n" + SMALL})
    for words in (["check"], ["run", "--steps=2"], ["run", "--steps=4"]):
        places = ["--slug=a", f"--location={tmp_path / 'kept'}"]
        ended = run(
            BIN / "sexpgpu", words[0], "small.py", *places, *words[1:], path=path, cwd=tmp_path / "project"
        )
        assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "kept" / "step-00000004").is_dir()


@pytest.mark.parametrize(
    "command",
    [
        [BIN / "slugline", "status"],
        *(
            [sys.executable, "-P", "-m", "sexpgpu", module, "--help"]
            for module in ("flows.rescue", "flows.deploy", "infra.metrics.main")
        ),
    ],
    ids=lambda command: str(command[-2]),
)
def test_every_command_and_service_of_ours_starts(command, tmp_path):
    ended = run(*command, path=shadows(tmp_path / "lib"), cwd=tmp_path)
    assert "shadowed" not in ended.stderr
    assert "usage" in ended.stdout.lower() or ended.stdout.startswith("SERVICE"), ended.stderr


def test_our_packages_are_those_beside_sexpgpu_and_the_path_is_left_as_it_was(tmp_path):
    """As it is where Slugline is installed by copying: not found first, and found all the same."""
    site = tmp_path / "site"
    for name in ("flows", "infra", "runtime"):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "sexpgpu.py", site)
    code = """
        import sys
        before = list(sys.path)
        import sexpgpu
        sexpgpu.Experiment
        assert sys.path == before
        print(*(sys.modules[name].__file__ for name in ("flows", "infra", "runtime")), sep="\\n")
    """
    path = os.pathsep.join([shadows(tmp_path / "lib"), str(site)])
    ended = run(sys.executable, "-P", "-c", "if True:" + code, path=path, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [
        str(site / name / "__init__.py") for name in ("flows", "infra", "runtime")
    ]


def test_a_module_that_is_none_of_ours_is_refused_with_what_is_taken(tmp_path):
    ended = run(sys.executable, "-P", "-m", "sexpgpu", "run", path="", cwd=tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "takes a module, such as flows.rescue; the command is `sexpgpu`" in ended.stderr
