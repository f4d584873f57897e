"""`syvain-metrics`, `div` and `slugline` as their users call them, in this process or as one of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

import flows.cli
import flows.div.main
import infra.metrics.main

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["Command", "Said"]

_MAIN = {
    "syvain-metrics": infra.metrics.main.main,
    "div": flows.div.main.main,
    "slugline": flows.cli.main,
}
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
            out, err = process.communicate(timeout=120)
        return Said(process.returncode, out, err)

    def takes_less(self, than: float, *arguments: object) -> bool:
        """Whether a process of it takes less of the processor than so many imports of the standard library.

        Each try is measured beside such an import, of 0.1 s on a quick processor: how quick this one is they
        have in common. Its other users may spoil some tries.
        """
        return any(self._seconds(arguments) < than * _yardstick() for _ in range(10))

    def _seconds(self, arguments: tuple[object, ...]) -> float:
        return _seconds(self.process(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def loads(self, heavy: Collection[str], commands: Sequence[Sequence[str]]) -> list[tuple[int, list[str]]]:
        """Run commands in one new process; return how each ended and which heavy modules it loaded first."""
        main = _MAIN[self._program]
        code = dedent(f"""
            import json, sys
            from {main.__module__} import main
            heavy = set({list(heavy)!r})
            for arguments in {list(map(list, commands))!r}:
                try: main(arguments)
                except SystemExit as end: code = end.code or 0
                loaded = heavy & set(sys.modules)
                heavy -= loaded
                sys.stderr.write("\\n" + json.dumps([code, sorted(loaded)]) + "\\n")
        """)
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(self.env),
            capture_output=True,
            text=True,
            check=True,
        )
        return [tuple(json.loads(line)) for line in ran.stderr.splitlines() if line.startswith("[")]

    def process(self, *arguments: object, **options: Any) -> subprocess.Popen[Any]:
        """Start it as a process."""
        program = str(Path(sys.executable).with_name(self._program))
        command = [program, *[str(argument) for argument in arguments]]
        return subprocess.Popen(command, env=environment(self.env), **options)


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with `env` and without any other key or host."""
    kept = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    return {**kept, **env}


def _yardstick() -> float:
    library = "argparse, asyncio, http.client, ssl, multiprocessing.pool, unittest.mock, xml.dom.minidom"
    return _seconds(subprocess.Popen([sys.executable, "-c", f"import {library}"]))


def _seconds(process: subprocess.Popen[Any]) -> float:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime
