"""An attempt: one process group that trains, started, watched, signalled and swept."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from flows import child
from flows.processes import ProcessId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["GUARD_MARGIN_S", "Attempt", "Plan", "signals_held", "wait_gone"]

logger = logging.getLogger(__name__)

REAP_S = 5.0
"""How long a process that got SIGKILL may take to go (the kernel may still be freeing a GPU's memory)."""

GUARD_MARGIN_S = 1.0
"""The guard strikes a little after the trainer's own life line would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is started: `command` in `folder`, its standard error appended to `log`, its output in `summary`.

    `summary` unset: its output goes where its standard error does, in the order in which it says it.
    `environment` replaces the flow process's. `inherited` are descriptors that the trainer keeps open (the
    locks of its GPUs). `notice_s` is the time between SIGTERM and SIGKILL.
    """

    command: Sequence[str]
    folder: Path
    log: Path
    summary: Path | None
    environment: Mapping[str, str]
    notice_s: float
    inherited: tuple[int, ...] = ()


@dataclass(slots=True)
class Attempt:
    """A trainer and its guard, from `start` until `close`; use it as a context manager.

    Leaving the block closes the life line and kills whatever is left of the group, so that no way out of
    it (a cancellation, a crash of ours) leaves a process behind.
    """

    plan: Plan
    _write_end: int = -1
    _guard: subprocess.Popen[bytes] | None = None
    _trainer: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def process(self) -> ProcessId | None:
        """Return the trainer's identity; unset: it has ended already."""
        assert self._trainer is not None
        try:
            return ProcessId.of(self._trainer.pid)
        except ProcessLookupError:
            return None

    def wait(self) -> int:
        """Return the trainer's wait status, as Python gives it, once it has ended."""
        assert self._trainer is not None
        with _pidfd(self._trainer.pid) as pidfd:
            # Not Popen.wait: a signal handler that raises must find us here, not inside its lock.
            select.select([pidfd], [], [])
        return self._trainer.wait()

    def stop(self) -> int:
        """Ask the whole group to save and end, wait for the notice, then kill it. Return the wait status."""
        assert self._trainer is not None
        with signals_held():
            logger.info(
                "stopping the trainer, process %d, within %g s", self._trainer.pid, self.plan.notice_s
            )
            self._signal_group(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._trainer.wait(self.plan.notice_s)
            self._signal_group(signal.SIGKILL)
            return self._reap(self._trainer)

    def close(self) -> None:
        """End everything that is left. Safe to call twice."""
        with signals_held():
            if self._write_end >= 0:
                os.close(self._write_end)
                self._write_end = -1
            if self._trainer is not None and self._trainer.poll() is None:
                self.stop()
            self._signal_group(signal.SIGKILL)
            if self._guard is not None:
                self._reap(self._guard)
                self._guard = None

    def _start(self) -> None:
        plan = self.plan
        read_end, self._write_end = os.pipe()
        with os.fdopen(read_end, "rb") as lifeline:
            read_end = lifeline.fileno()
            self._guard = _popen(
                ["guard", str(read_end), str(plan.notice_s + GUARD_MARGIN_S)],
                process_group=0,
                pass_fds=(read_end,),
            )
            with contextlib.ExitStack() as files:
                log = files.enter_context(plan.log.open("ab"))
                summary = log if plan.summary is None else files.enter_context(plan.summary.open("wb"))
                self._trainer = _popen(
                    ["exec", str(os.getpid()), *plan.command],
                    process_group=self._guard.pid,
                    pass_fds=(read_end, *plan.inherited),
                    cwd=plan.folder,
                    env={**plan.environment, "SLUGLINE_LIFELINE_FD": str(read_end)},
                    stdout=summary,
                    stderr=log,
                )

    def _reap(self, killed: subprocess.Popen[bytes]) -> int:
        """Return the wait status of a process that got SIGKILL; how it left its block matters more."""
        try:
            return killed.wait(REAP_S)
        except subprocess.TimeoutExpired:
            logger.exception("process %d got SIGKILL and stays: the kernel is not done with it", killed.pid)
            return -signal.SIGKILL

    def _signal_group(self, number: signal.Signals) -> None:
        if self._guard is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._guard.pid, number)


def _popen(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-I", "-S", child.__file__, *arguments]
    null = subprocess.DEVNULL
    return subprocess.Popen(program, stdin=null, **{"stdout": null, "stderr": null, **options})


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let no SIGTERM or SIGINT break off what is inside: one that comes meanwhile is delivered at its end.

    Only the main thread may do so; elsewhere signals never interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    # A mask would not do: another thread would take the signal, and its handler runs in this one.
    before = {
        number: signal.signal(number, lambda came_in, _frame: came.append(came_in)) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in dict.fromkeys(came):
            signal.raise_signal(late)


def wait_gone(process: ProcessId, *, alive: Callable[[ProcessId], bool | None], timeout_s: float) -> bool:
    """Wait until `process` of this host has ended; False: it still lives after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while alive(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True
