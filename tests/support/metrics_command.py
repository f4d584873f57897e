"""`syvain-metrics` and `div` called as their users call them, within this process or as one of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import flows.div.main
import infra.metrics.main

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Command", "Said"]

_MAIN = {"syvain-metrics": infra.metrics.main.main, "div": flows.div.main.main}
_VARIABLES = [f"{prefix}_METRICS_{name}" for prefix in ("O41", "SYVAIN") for name in ("API_KEY", "HOST")]


@dataclass(frozen=True)
class Said:
    """What one command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """The one line of standard error."""
        (line,) = self.err.splitlines()
        return line

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line of a table, its heading left out."""
        return [line.split() for line in self.out.splitlines()[1:]]


class Command:
    """Calls the command with a key for one server, in an environment of its own."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        home: Path,
        program: str = "syvain-metrics",
        **env: str,
    ) -> None:
        self._program = program
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.env = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), **env}

    def __call__(self, *arguments: object, stdin: str = "") -> Said:
        """Run it in this process."""
        with self._monkeypatch.context() as patch:
            for name in _VARIABLES:
                patch.delenv(name, raising=False)
            for name, value in self.env.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            self._capsys.readouterr()
            with pytest.raises(SystemExit) as end:
                _MAIN[self._program]([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        return Said(int(end.value.code or 0), out, err)

    def ok(self, *arguments: object, stdin: str = "") -> Said:
        """Run it in this process; it must end well."""
        said = self(*arguments, stdin=stdin)
        assert said.code == 0, said
        return said

    def apart(self, *arguments: object) -> Said:
        """Run it as a process of its own, which lets go of everything at its end."""
        with self.process(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, err = process.communicate(timeout=60)
        return Said(process.returncode, out, err)

    def process(self, *arguments: object, **options: Any) -> subprocess.Popen[Any]:
        """Start it as a process."""
        program = str(Path(sys.executable).with_name(self._program))
        command = [program, *[str(argument) for argument in arguments]]
        return subprocess.Popen(command, env=environment(self.env), **options)


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with `env` and without any other key or host."""
    kept = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    return {**kept, **env}
