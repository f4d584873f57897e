"""Importing an experiment file and its local modules apart from everything else in the process.

A project may have folders of its own called `flows`, `runtime` or `infra`, and so do we. Its files get
theirs and our code keeps ours: each file of the project runs with an `__import__` of its own, which looks
in the entry's folder first and registers what it finds there under a private name. Nothing is put on
`sys.path`, so neither the working folder nor the project can shadow what an installed package imports.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import logging
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from runtime.events.identity import Source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["LocalModules"]

log = logging.getLogger(__name__)

OURS = frozenset({"flows", "infra", "runtime"})
"""Our packages, which a project's files never see: to them it is as if Slugline were not installed."""

STANDARD = frozenset({"data", "digits", "models", "optim", "text"})
"""What `sexpgpu` loads from `runtime.std` when it is asked for it."""


@dataclass(slots=True, eq=False)
class LocalModules:
    """The modules of one loaded experiment file. They live as long as the process.

    `sources` and `standard` grow while modules are imported, until `close`; what is imported later still
    works, and the log says that the manifest lacks it.
    """

    root: Path
    sources: dict[str, bytes] = field(default_factory=dict)
    standard: set[str] = field(default_factory=set)
    namespace: str = field(default="", init=False)
    _facade: ModuleType = field(init=False)
    _local: dict[str, bool] = field(default_factory=dict, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.namespace = _free_name()
        self._facade = _Facade(self)
        package = ModuleType(self.namespace)
        package.__path__ = [str(self.root)]
        sys.modules[self.namespace] = package
        sys.meta_path.insert(0, self)

    def run_entry(self, entry: Path) -> ModuleType:
        """Execute `entry` and return its module."""
        is_package = (self.root / entry.stem / "__init__.py").is_file()
        importable = entry.stem.isidentifier() and not is_package
        name = f"{self.namespace}.{entry.stem if importable else '__entry__'}"
        self._local[name.rpartition(".")[2]] = True
        spec = self._file_spec(name, entry)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        assert spec.loader is not None
        spec.loader.exec_module(module)
        return module

    def manifest(self) -> list[Source]:
        """Return the files executed so far: the entry, then the others by path."""
        entry, *others = self.sources
        return [Source(path, sha256(self.sources[path]).hexdigest()) for path in (entry, *sorted(others))]

    def close(self) -> None:
        """Take note that the manifest is written: what is imported from here on is not in it."""
        self._closed = True

    def executed(self, path: Path, code: bytes) -> None:
        """Take note of the bytes of a file that is about to be executed."""
        relative = path.relative_to(self.root).as_posix()
        if self._closed:
            log.warning("%s is first imported after the start: it is not in the manifest", relative)
        else:
            self.sources[relative] = code

    def used_standard(self, name: str) -> None:
        """Take note of a standard module that a file asked for."""
        if not self._closed:
            self.standard.add(name)
        elif name not in self.standard:
            log.warning("sexpgpu.%s is first used after the start: it is not in the manifest", name)

    def forget(self) -> None:
        """Take everything out of the process again, after a file that could not be loaded."""
        sys.meta_path.remove(self)
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{self.namespace}.")]:
            del sys.modules[name]

    # What the import system calls.

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find a module of ours by its private name; every other name is somebody else's."""
        parent, _, _stem = name.partition(".")
        if parent != self.namespace:
            return None
        place = self.root.joinpath(*name.split(".")[1:])
        if (place / "__init__.py").is_file():
            return self._file_spec(name, place / "__init__.py", package=place)
        if place.with_name(place.name + ".py").is_file():
            return self._file_spec(name, place.with_name(place.name + ".py"))
        if place.is_dir():
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return None

    def _file_spec(self, name: str, path: Path, *, package: Path | None = None) -> ModuleSpec:
        places = [str(package)] if package else None
        loader = _Loader(self, path)
        spec = importlib.util.spec_from_file_location(
            name,
            path,
            loader=loader,  # type: ignore[arg-type] # a loader needs no more than exec_module
            submodule_search_locations=places,
        )
        assert spec is not None
        return spec

    # What the project's files call.

    def import_(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002 - the signature of __import__
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """The `__import__` of the project's files."""
        top = name.partition(".")[0]
        if level > 0:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if name == "sexpgpu":
            return self._facade
        if top not in self._local:
            self._local[top] = self._is_local(top)
        if self._local[top]:
            private = f"{self.namespace}.{name}"
            if fromlist:
                return builtins.__import__(private, globals, locals, fromlist, 0)
            importlib.import_module(private)
            return sys.modules[f"{self.namespace}.{top}"]
        if top in OURS:
            raise ModuleNotFoundError(
                f"No module named {top!r} in {self.root}; what Slugline offers comes from sexpgpu", name=name
            )
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    def _is_local(self, top: str) -> bool:
        """Say whether `import top` means the project's, by Python's own order of precedence.

        The entry's folder stands first on the path of an ordinary script, but built-in modules stand before
        every path, and a folder without `__init__.py` behind every installed package.
        """
        if top in sys.builtin_module_names or top in {"__future__", "sexpgpu"}:
            return False
        place = self.root / top
        if (self.root / f"{top}.py").is_file() or (place / "__init__.py").is_file():
            return True
        return place.is_dir() and (top in OURS or not _is_installed(top))


@dataclass(frozen=True, slots=True)
class _Loader:
    """Executes one file of the project: exactly the bytes that are hashed, read once."""

    modules: LocalModules
    path: Path

    def create_module(self, _spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        code = self.path.read_bytes()
        self.modules.executed(self.path, code)
        vars(module)["__builtins__"] = {
            **vars(builtins),
            "__import__": self.modules.import_,
            "print": _print_to_stderr,
        }
        exec(compile(code, str(self.path), "exec", dont_inherit=True), vars(module))  # noqa: S102


class _Facade(ModuleType):
    """`sexpgpu` as one experiment file sees it: the same, and it notes which standard modules are used."""

    def __init__(self, modules: LocalModules) -> None:
        super().__init__("sexpgpu")
        self._modules = modules

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module("sexpgpu"), name)
        if name in STANDARD:
            self._modules.used_standard(name)
        return value


def _print_to_stderr(*values: object, **options: Any) -> None:
    """Standard output is for what was asked for: an experiment file's own prints go to standard error."""
    builtins.print(  # noqa: T201 - the print of the experiment file
        *values, **{**options, "file": options.get("file") or sys.stderr}
    )


def _free_name() -> str:
    number = 1
    while f"experiment_{number}" in sys.modules:
        number += 1
    return f"experiment_{number}"


def _is_installed(top: str) -> bool:
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # it is imported and has no spec, as __main__ may have none
        return True
    return spec is not None and spec.origin is not None
