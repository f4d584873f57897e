from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
from typing import TYPE_CHECKING

import pytest

import runtime.errors
from runtime.experiment.imports import LocalModules
from tests.support.experiments import write_project

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def before() -> Iterator[None]:
    modules, finders, path = dict(sys.modules), list(sys.meta_path), list(sys.path)
    yield
    for name in set(sys.modules) - set(modules):
        if name.startswith("experiment_"):
            del sys.modules[name]
    sys.meta_path[:] = finders
    assert sys.path == path


def load(root: Path, files: Mapping[str, str]) -> tuple[LocalModules, ModuleType]:
    entry = write_project(root, files)
    modules = LocalModules(entry.parent)
    return modules, modules.run_entry(entry)


@pytest.mark.usefixtures("before")
class TestLocalModules:
    def test_a_project_gets_its_own_packages_and_ours_stay_ours(self, tmp_path: Path):
        ours = sys.modules["runtime"]
        _, entry = load(
            tmp_path,
            {
                "train.py": "import runtime.engine\nfrom flows.data import x\nimport infra\nnames = runtime",
                "runtime/engine.py": "name = 'own engine'",
                "flows/__init__.py": "",
                "flows/data.py": "x = 'own data'",
                "infra/__init__.py": "",
            },
        )
        assert entry.names.engine.name == "own engine"
        assert entry.x == "own data"
        assert sys.modules["runtime"] is ours
        assert runtime.errors.Rejected.exit_code == 2

    def test_a_project_without_a_package_does_not_get_ours(self, tmp_path: Path):
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'runtime' in .*comes from sexpgpu"):
            load(tmp_path, {"train.py": "import runtime.errors"})

    def test_every_form_of_import_finds_the_same_module(self, tmp_path: Path):
        _, entry = load(
            tmp_path,
            {
                "train.py": """
                    import a.b
                    import a.b as direct
                    from a import b
                    from a.b import here
                    from a import *
                    from . import a as relative
                    same = {id(a.b), id(direct), id(b), id(relative.b), id(star)}
                """,
                "a/__init__.py": "from . import b\nfrom .b import here\nfrom . import b as star",
                "a/b.py": "here = 1",
            },
        )
        assert len(entry.same) == 1
        assert entry.here == 1

    def test_an_import_cycle_resolves_as_in_any_package(self, tmp_path: Path):
        _, entry = load(
            tmp_path,
            {
                "train.py": "import left\nimport right",
                "left.py": "import right\ndef name(): return right.NAME",
                "right.py": "import left, train\nNAME = 'right of ' + train.__name__.rpartition('.')[2]",
            },
        )
        assert entry.left.name() == "right of train"

    def test_dataclasses_type_hints_and_pickles_work(self, tmp_path: Path):
        _, entry = load(
            tmp_path,
            {
                "train.py": "from rows import Row, hints",
                "rows.py": """
                    from __future__ import annotations
                    from dataclasses import dataclass, field
                    import typing

                    @dataclass(frozen=True, slots=True)
                    class Row:
                        value: int = field(default=3)
                        child: Row | None = None

                    hints = typing.get_type_hints(Row)
                """,
            },
        )
        row = entry.Row(1, entry.Row())
        assert pickle.loads(pickle.dumps(row)) == row
        assert entry.hints["value"] is int

    def test_a_file_wins_over_an_installed_package_but_a_mere_folder_does_not(self, tmp_path: Path):
        _, entry = load(
            tmp_path,
            {
                "train.py": "import colorsys, torch, sys, mine.deep",
                "colorsys.py": "own = True",
                "torch/downloads.txt": "",
                "sys.py": "raise RuntimeError('built-in modules come first')",
                "mine/deep.py": "",
            },
        )
        assert entry.colorsys.own
        assert entry.torch is sys.modules["torch"]
        assert entry.sys is sys
        assert "colorsys" not in sys.modules or not hasattr(sys.modules["colorsys"], "own")

    def test_a_package_of_the_entrys_own_name_can_be_imported(self, tmp_path: Path):
        files = {"train.py": "import train.data", "train/__init__.py": "", "train/data.py": "x = 1"}
        _, entry = load(tmp_path, files)
        assert entry.train.data.x == 1

    def test_what_is_hashed_is_what_was_executed(self, tmp_path: Path):
        source = "import os, helper\nwith open(__file__, 'a') as file: file.write('# changed')"
        modules, _ = load(tmp_path, {"my-train.py": source, "helper.py": "x = 1"})
        found = {entry.path: entry.sha256 for entry in modules.manifest()}
        assert found["my-train.py"] == hashlib.sha256(source.encode()).hexdigest()
        assert list(found) == ["my-train.py", "helper.py"]

    def test_the_manifest_holds_what_is_imported_late_and_nothing_that_is_only_there(self, tmp_path: Path):
        modules, entry = load(
            tmp_path,
            {
                "train.py": "def later():\n    from pkg.sub import deep\n    return deep.x",
                "pkg/__init__.py": "",
                "pkg/sub/deep.py": "x = 5",
                "pkg/unused.py": "",
            },
        )
        assert entry.later() == 5
        assert [source.path for source in modules.manifest()] == [
            "train.py",
            "pkg/__init__.py",
            "pkg/sub/deep.py",
        ]

    def test_an_import_after_the_start_works_and_is_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        modules, entry = load(tmp_path, {"train.py": "def later():\n    import late", "late.py": ""})
        modules.close()
        with caplog.at_level(logging.WARNING):
            entry.later()
            entry.later()
        assert caplog.messages == ["late.py is first imported after the start: it is not in the manifest"]
        assert [source.path for source in modules.manifest()] == ["train.py"]

    def test_standard_modules_are_noted_however_they_are_reached(self, tmp_path: Path):
        source = "import sexpgpu\nfrom sexpgpu import optim\nsexpgpu.text\nfrom helper import *"
        modules, entry = load(tmp_path, {"train.py": source, "helper.py": "from sexpgpu import data"})
        assert modules.standard == {"optim", "text", "data"}
        assert entry.sexpgpu.Stage is sys.modules["sexpgpu"].Stage

    def test_an_unknown_name_of_sexpgpu_is_an_import_error(self, tmp_path: Path):
        with pytest.raises(ImportError, match="cannot import name 'nothing' from 'sexpgpu'"):
            load(tmp_path, {"train.py": "from sexpgpu import nothing"})
        with pytest.raises(ModuleNotFoundError, match="'sexpgpu' is not a package"):
            load(tmp_path / "other", {"train.py": "import sexpgpu.text"})

    def test_a_print_of_the_file_goes_to_standard_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ):
        load(tmp_path, {"train.py": "import sys\nprint('hello', end='!')\nprint('asked', file=sys.stdout)"})
        assert capsys.readouterr() == ("asked\n", "hello!")

    def test_two_loads_of_one_file_are_apart(self, tmp_path: Path):
        _, first = load(tmp_path, {"train.py": "import state", "state.py": "seen = []"})
        first.state.seen.append(1)
        _, second = load(tmp_path, {"train.py": "import state", "state.py": "seen = []"})
        assert second.state.seen == []

    def test_a_forgotten_file_leaves_nothing_in_the_process(self, tmp_path: Path):
        names, finders = set(sys.modules), list(sys.meta_path)
        modules, _ = load(tmp_path, {"train.py": "import helper.deep", "helper/deep.py": ""})
        modules.forget()
        assert set(sys.modules) == names
        assert sys.meta_path == finders

    def test_neither_the_working_folder_nor_a_byte_code_cache_is_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        elsewhere = tmp_path / "elsewhere"
        write_project(elsewhere, {"helper.py": "x = 'wrong'"})
        monkeypatch.chdir(elsewhere)
        _, entry = load(tmp_path / "project", {"train.py": "import helper", "helper.py": "x = 'right'"})
        assert entry.helper.x == "right"
        assert not [name for _, folders, _ in os.walk(tmp_path) for name in folders if name == "__pycache__"]

    def test_a_class_of_the_project_crosses_a_fork(self, tmp_path: Path):
        _, entry = load(tmp_path, {"train.py": "from rows import Row", "rows.py": "class Row:\n    x = 4"})
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # as a loader's worker does it
            os.write(writer, pickle.dumps(entry.Row()))
            os._exit(0)
        os.waitpid(child, 0)
        assert pickle.loads(os.read(reader, 4096)).x == 4
        os.close(reader)
        os.close(writer)
