from __future__ import annotations

import hashlib
from pathlib import Path

import runtime
from runtime.experiment import manifest
from runtime.experiment.manifest import core_source, standard_sources

STD = Path(runtime.__file__).parent / "std"


def test_a_standard_module_brings_those_that_it_imports():
    sources = standard_sources(["digits"])
    assert [source.path for source in sources] == [
        "<std/data>",
        "<std/digits>",
        "<std/draws>",
        "<std/workers>",
    ]
    assert sources[1].sha256 == hashlib.sha256((STD / "digits.py").read_bytes()).hexdigest()


def test_the_core_is_everything_but_the_standard_modules(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(manifest, "RUNTIME", tmp_path)
    (tmp_path / "std").mkdir()
    (tmp_path / "loop.py").write_text("1")
    first = core_source()
    (tmp_path / "std" / "text.py").write_text("changed")
    assert core_source() == first
    (tmp_path / "loop.py").rename(tmp_path / "pool.py")
    renamed = core_source()
    (tmp_path / "pool.py").write_text("2")
    assert len({first.sha256, renamed.sha256, core_source().sha256}) == 3
