"""Runs of `sexpgpu` forked from a process that has imported torch and computed nothing: 0.1 s each, not 2.

A forked child is the real command: its own process group, its own files for output, its own signals. A
`CallPlan` makes it signal itself at one exact call of one function.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from tests.support.s3_models import share_s3_models

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
CALLS = "SLUGLINE_TEST_CALLS"
TIMEOUT_S = 150.0

BACKOFF = "SLUGLINE_TEST_BACKOFF_S"
QUICK_RETRIES = {BACKOFF: "0.05"}
"""For a store that stays broken: a save gives up after five pauses of this, not of 0.5 to 8 seconds."""

SETTINGS = "SLUGLINE_TEST_SETTINGS"

PRELOADED = (
    "torch",
    "torch._dynamo",  # what the first optimiser of a process imports: a second
    "boto3",
    "runtime.checkpoints.location",
    "runtime.checkpoints.attempt",
    "runtime.checkpoints.s3",
    "runtime.checkpoints.saver",
    "runtime.cli.main",
    "httpx",
    "runtime.events.syvain.target",
    "runtime.experiment.frontend",
    "runtime.training.attempt_run",
    "runtime.training.prepared",
    "runtime.training.run",
    "tests.support.faults",
)


def settings(values: Mapping[str, float]) -> dict[str, str]:
    """The variable that gives module constants, each a `module:NAME`, other values in one run."""
    return {SETTINGS: json.dumps(values)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """Send `signum` to the process itself before or after call `at` (from 1) of `call`, a `module:name`."""

    call: str
    at: int = 1
    when: Literal["before", "after"] = "before"
    signum: int = signal.SIGKILL


@dataclass(slots=True)
class ForkedRun:
    """One run. `code` is its exit code as `subprocess` counts them, unset while it lives."""

    pid: int
    out: Path
    err: Path
    forge: Forge = field(repr=False)
    code: int | None = None

    def wait(self) -> int:
        """Return the exit code, and how a run that does not end in time stood."""
        code = self.forge._wait(self)
        assert code is not None, f"still running after {TIMEOUT_S:g} s:\n{self.err.read_text()}"
        return code

    @property
    def said(self) -> str:
        """What is on its standard error by now."""
        return self.err.read_text() if self.err.exists() else ""

    def signal(self, signum: int) -> bool:
        """Signal the run's process, which is its group's leader; say whether it was still there."""
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        return True


class Forge:
    """The process that forks. One for a test session; runs may be started while others live."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        self._runs: dict[int, ForkedRun] = {}
        self._number = 0

    def start(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        env: Mapping[str, str] | None = None,
        calls: CallPlan | None = None,
    ) -> ForkedRun:
        """Start `sexpgpu` with these arguments, in `folder`, with `env` added to the environment."""
        self._number += 1
        out, err = folder / f"out-{self._number}", folder / f"err-{self._number}"
        variables = dict(env or {})
        if calls is not None:
            variables[CALLS] = json.dumps(asdict(calls))
        order = {
            "arguments": list(arguments),
            "folder": str(folder),
            "env": variables,
            "out": str(out),
            "err": str(err),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        pid = self._hear(lambda news: "code" not in news)["pid"]
        run = self._runs[pid] = ForkedRun(pid, out, err, self)
        return run

    def run(self, arguments: Sequence[str], **options: Any) -> ForkedRun:
        """Start a run and wait for its end."""
        run = self.start(arguments, **options)
        run.wait()
        return run

    def close(self) -> None:
        """End the process, and with it the runs that are left: each dies with it.

        It is not asked to: where no test needed it for long, it may still be importing torch.
        """
        with self._process:
            self._process.kill()

    def _wait(self, run: ForkedRun) -> int | None:
        while run.code is None:
            self._hear(lambda news: news.get("pid") == run.pid)
        return run.code

    def _hear(self, wanted: Any) -> dict[str, Any]:
        """Read the forge's lines, noting every run's end, until one is `wanted`."""
        assert self._process.stdout is not None
        while True:
            news: dict[str, Any] = json.loads(self._process.stdout.readline())
            if "code" in news:
                self._runs.pop(news["pid"]).code = news["code"]
            if wanted(news):
                return news


@contextmanager
def running_forge() -> Iterator[Forge]:
    forge = Forge()
    try:
        yield forge
    finally:
        forge.close()


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    with running_forge() as forge:
        yield forge


def _serve() -> None:
    _die_with_parent()
    # Inherited: a run that is interrupted before it asks for signals dies of them, it raises nothing here.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for module in PRELOADED:
        importlib.import_module(module)
    share_s3_models()
    children: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        orders = os.fdopen(0, "rb", buffering=0, closefd=False)
        while True:
            for key, _ in selector.select():
                if key.fd:
                    selector.unregister(key.fd)
                    pid = children.pop(key.fd)
                    _tell(pid=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    os.close(key.fd)
                    continue
                line = orders.readline()
                if not line:
                    for pid in children.values():
                        os.kill(pid, signal.SIGKILL)
                    return
                pid = _fork(json.loads(line))
                descriptor = os.pidfd_open(pid)
                children[descriptor] = pid
                selector.register(descriptor, selectors.EVENT_READ)
                _tell(pid=pid)


def _tell(**news: int) -> None:
    os.write(1, json.dumps(news).encode() + b"\n")


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        _die_with_parent()
        signal.alarm(int(TIMEOUT_S))
        for descriptor, path in ((1, order["out"]), (2, order["err"])):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, descriptor)
            os.close(file)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.chdir(order["folder"])
        os.environ.update(order["env"])
        code = _run(order["arguments"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(arguments: list[str]) -> int:
    from runtime.cli.main import main
    from tests.support.faults import FaultPlan, install

    plan = FaultPlan.of_env()
    if plan is not None:
        install(plan)
    if BACKOFF in os.environ:
        from runtime.checkpoints.saver import Saver

        defaults = Saver.__init__.__kwdefaults__
        assert defaults is not None
        defaults["backoff_s"] = (float(os.environ[BACKOFF]),) * 5
    for name, value in json.loads(os.environ.get(SETTINGS, "{}")).items():
        module, _, constant = name.partition(":")
        assert hasattr(importlib.import_module(module), constant), name
        setattr(importlib.import_module(module), constant, value)
    if CALLS in os.environ:
        _plant(CallPlan(**json.loads(os.environ[CALLS])))
    try:
        return main(arguments)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  (what the interpreter would do)
        import traceback

        traceback.print_exc()
        return 1


def _plant(plan: CallPlan) -> None:
    """Replace the function by one that counts and signals; other threads' calls count too."""
    module, _, path = plan.call.partition(":")
    *outer, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in outer:
        owner = getattr(owner, part)
    inner = getattr(owner, name)
    count = 0

    def planted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        hit = count == plan.at
        if hit and plan.when == "before":
            os.kill(os.getpid(), plan.signum)
        result = inner(*args, **kwargs)
        if hit and plan.when == "after":
            os.kill(os.getpid(), plan.signum)
        return result

    setattr(owner, name, planted)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    _serve()
