"""Metrics servers forked from a process that has imported the server and opened nothing: 0.2 s, not 1.5.

A forked server is the real command in a process of its own, with its own environment, log and signals.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ForkedServer", "fork_server"]

ROOT = Path(__file__).parents[2]
PRELOADED = (
    "alembic.autogenerate",
    "alembic.command",
    "alembic.runtime.migration",
    "infra.metrics.main",
    "infra.server.serving",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "uvicorn.lifespan.on",
    "uvloop",
)


class ForkedServer:
    """One server; `pid` may be signalled until the end of it was waited for."""

    def __init__(self, forge: _Forge, pid: int) -> None:
        self.pid = pid
        self._forge = forge
        self._ended = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, as `subprocess` counts; None while it lives."""
        return self._look(0)

    def wait(self, timeout: float) -> int:
        """Return how it ended.

        Raises:
            TimeoutError: It lives on.
        """
        code = self._look(timeout)
        if code is None:
            raise TimeoutError(f"server {self.pid} lives on after {timeout:g} s")
        return code

    def send_signal(self, signum: int) -> None:
        """Signal it, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def _look(self, timeout_s: float) -> int | None:
        if self._code is None and select.select([self._ended], [], [], timeout_s)[0]:
            self._code = self._forge.ask(reap=self.pid)
            os.close(self._ended)
        return self._code


class _Forge:
    """The process that forks; its servers die with it, and it with this one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.server_forge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self._lock = Lock()
        atexit.register(self._close)

    def ask(self, **order: Any) -> int:
        """Give an order and return its answer, a number."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def _close(self) -> None:
        with self._process:
            self._process.kill()


@cache
def _forge() -> _Forge:
    return _Forge()


def fork_server(arguments: Sequence[str], *, log: Path, env: Mapping[str, str]) -> ForkedServer:
    """Start `syvain-metrics` with these arguments and this environment; what it says is added to `log`."""
    forge = _forge()
    pid = forge.ask(arguments=list(arguments), log=str(log), env=dict(env), folder=str(Path.cwd()))
    return ForkedServer(forge, pid)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _serve() -> dict[str, Any] | None:
    """Follow orders until there are no more (None); in a fork, return what it is to be."""
    _die_with_parent()
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    orders = os.fdopen(0, "rb", buffering=0, closefd=False)
    while line := orders.readline():
        order: dict[str, Any] = json.loads(line)
        if "reap" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
        elif not (answer := os.fork()):
            return order
        os.write(1, b"%d\n" % answer)
    return None


def _become(order: dict[str, Any]) -> None:
    _die_with_parent()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, place)
    for descriptor in (nothing, log):
        os.close(descriptor)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["env"])
    from infra.metrics.main import main

    main(order["arguments"])


if __name__ == "__main__":
    order = _serve()
    if order is not None:
        _become(order)  # and ends as the command does, by the interpreter's own end
