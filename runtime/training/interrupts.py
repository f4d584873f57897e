"""Signals and the life line: what asks a run to end, and the bound within which it does.

The handlers only set a flag; the loop looks at it where a run can be left. A thread of its own watches the
clock, woken by the kernel even while the main thread is inside a long call, and ends the process when the
notice is over. This module imports no torch: it is in force before torch is.
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, TracebackType

__all__ = ["LIFELINE_VARIABLE", "Interrupted", "Interrupts", "lifeline_from"]

LIFELINE_VARIABLE = "SLUGLINE_LIFELINE_FD"
"""Names the read end of a pipe whose only write end the flow process holds. Its end of file is a SIGTERM."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP says that the terminal has gone; where it is ignored (`nohup`) it stays so."""

START_BOUND_S = 2.0
"""Before the run is claimed there is nothing to save."""

GIVE_UP_BOUND_S = 2.0

_SECOND_AFTER_S = 0.5
"""A dying parent can send the same news twice at once (its death signal, and a group's); a person cannot."""

_RESERVE_S = 1.0
"""Kept of the notice for what follows a save: annotating it, flushing the targets."""

_log = logging.getLogger(__name__)


class Interrupted(Exception):
    """A signal came before the run was claimed; `exit_code` is 128 plus its number."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum


def lifeline_from(environment: Mapping[str, str]) -> int | None:
    """Return the life line's descriptor, None where there is none.

    Raises:
        Rejected: the variable is set, but not to the number of an open descriptor.
    """
    text = environment.get(LIFELINE_VARIABLE)
    if text is None:
        return None
    try:
        descriptor = int(text)
        os.fstat(descriptor)
    except (ValueError, OverflowError, OSError):
        raise Rejected(
            f"{LIFELINE_VARIABLE} must be the number of an open pipe, got {text!r}: unset it when you start "
            "a run by hand"
        ) from None
    return descriptor


class Interrupts:
    """The signals of one attempt, from before torch is imported to the end of the process.

    `until_exit` keeps the handlers when the context ends: what the process ends with is decided then, and a
    signal changes nothing of it. Unset, they are given back, unless a signal has come.

    `pending` is the first signal's number. `give_up` is set when nothing is to be waited for any more: by a
    second signal (half a second or more after the first), or when only the time to flush is left of the
    notice. `notice_s` counts from the first signal; when it is over the process ends where it stands.
    """

    def __init__(
        self,
        *,
        notice_s: float,
        lifeline: int | None = None,
        until_exit: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pending: int | None = None
        self.give_up = threading.Event()
        self.loses_work = False
        """Set while steps are done that no published checkpoint holds: a forced end is then exit 75."""
        self.exit_code: int | None = None
        """How the run has ended, once only flushing is left: a forced end then changes nothing of that."""
        self._notice_s = notice_s
        self._lifeline = lifeline
        self._until_exit = until_exit
        self._lifeline_lost = False
        self._clock = clock
        self._asked_at = math.inf
        self._real_signal_at: float | None = None
        self._insisted_at = math.inf
        self._claimed = False
        self._asked = threading.Event()
        self._before: dict[int, Any] = {}
        self._wakeup: tuple[int, int] = (-1, -1)
        self._thread = threading.Thread(target=self._watch, name="interrupts", daemon=True)

    def __enter__(self) -> Self:
        global _installed  # noqa: PLW0603 - a forked child must find it and let go
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(reader, False)
        self._wakeup = reader, writer
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._before = {signum: signal.signal(signum, self._on_signal) for signum in _heard()}
        if _installed is None:
            os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_let_go)
        _installed = self
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the handlers back. After a signal, or if asked to, they stay, and the bound too, to the exit.

        After a lost life line everything that this attempt started ends here, this process included.
        """
        if self._lifeline_lost:
            sys.stdout.flush()
            sys.stderr.flush()
            self._kill_group()
        if self.exit_code is None:
            self.exit_code = getattr(error, "exit_code", None)
        if self.pending is not None or self._until_exit:
            return
        self._restore()
        os.write(self._wakeup[1], b"\0")
        self._thread.join()
        for descriptor in self._wakeup:
            os.close(descriptor)

    def claimed(self) -> None:
        """From here on the end of the run is written, and the whole notice is for that."""
        self._claimed = True

    def asked(self) -> bool:
        """Say whether the run is to end."""
        return self.pending is not None

    def check(self) -> None:
        """Raise `Interrupted` when a signal has come: for the phases before the run is claimed."""
        if self.pending is not None:
            raise Interrupted(self.pending)

    def expected_within(self, timeout_s: float) -> bool:
        """Wait for a signal that may be on its way: a loader's workers can get theirs first."""
        return self.pending is not None or self._asked.wait(timeout_s)

    @property
    def signal_name(self) -> str:
        """`SIGTERM`, `SIGINT` or `SIGHUP`; only when one is pending."""
        assert self.pending is not None
        return signal.Signals(self.pending).name

    @property
    def insisted(self) -> bool:
        """Whether a second signal came."""
        return not math.isinf(self._insisted_at)

    def time_left_s(self) -> float:
        """How long what follows a save may take: without end while no signal is pending."""
        return max(0.0, self._deadline() - self._clock() - _RESERVE_S / 2)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self.pending is None:
            self._asked_at = self._clock()
            self.pending = signum

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup[0], selectors.EVENT_READ, self._read_signals)
            if self._lifeline is not None:
                selector.register(self._lifeline, selectors.EVENT_READ, self._read_lifeline)
            while True:
                left = self._time_is_over()
                for key, _ in selector.select(None if math.isinf(left) else left):
                    keep = key.data()
                    if keep is None:
                        return
                    if not keep:
                        selector.unregister(key.fd)

    def _time_is_over(self) -> float:
        """Act on the clock; return the seconds until it must be looked at again."""
        left = self._deadline() - self._clock()
        if left <= 0:
            self._end_now()
        reserve = min(_RESERVE_S, self._notice_s / 2)
        if left > reserve:
            return left - reserve
        self.give_up.set()
        return left

    def _read_signals(self) -> bool | None:
        """Note what came; None when the watch is over."""
        for signum in os.read(self._wakeup[0], 4096):
            if signum == 0:
                return None
            if signum in SIGNALS:
                self._note(signum)
        return True

    def _note(self, signum: int) -> None:
        now = self._clock()
        self._on_signal(signum, None)  # the main thread may be inside a call that holds its handler back
        self._asked.set()
        if self._real_signal_at is None:
            self._real_signal_at = now
        elif now - self._real_signal_at >= _SECOND_AFTER_S and not self.insisted:
            self._insisted_at = now
            self.give_up.set()

    def _read_lifeline(self) -> bool:
        assert self._lifeline is not None
        with suppress(BlockingIOError, InterruptedError):
            if os.read(self._lifeline, 4096):
                return True
            self._lifeline_lost = True
            self._on_signal(signal.SIGTERM, None)
            self._asked.set()
            return False
        return True

    def _deadline(self) -> float:
        bound = self._notice_s if self._claimed else min(self._notice_s, START_BOUND_S)
        return min(self._asked_at + bound, self._insisted_at + GIVE_UP_BOUND_S)

    def _end_now(self) -> None:
        """End the process from the watching thread; no lock is taken, the main thread may hold any."""
        with suppress(OSError):
            os.write(2, self._last_words().encode())
        if self._lifeline_lost:
            self._kill_group()
        lost = 75 if self.loses_work and not self.insisted else 128 + (self.pending or 0)
        os._exit(lost if self.exit_code is None else self.exit_code)

    def _last_words(self) -> str:
        name = signal.Signals(self.pending or signal.SIGTERM).name
        if not self._claimed:
            return f"interrupted by {name} before the run was claimed: nothing was touched\n"
        loses = self.loses_work and self.exit_code is None
        lost = (
            "steps since the last checkpoint are lost"
            if loses
            else "all that a checkpoint should hold is held"
        )
        return f"{name}: the notice of {self._notice_s:g} s is over, ending where the run stands; {lost}\n"

    def _kill_group(self) -> None:
        """SIGKILL to the own group; only its leader does that, or a shell's other commands would die too."""
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def _restore(self) -> None:
        signal.set_wakeup_fd(-1)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)


def _heard() -> tuple[signal.Signals, ...]:
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return tuple(signum for signum in SIGNALS if not (is_ignored and signum == signal.SIGHUP))


_installed: Interrupts | None = None
_held = threading.local()


def _hold() -> None:
    """Before a fork: a signal that meets the child before it has let go would only set a flag there."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _let_go() -> None:
    """In a forked child (a loader's worker): a signal to it is its own, and ends it."""
    with suppress(ValueError):  # forked off another thread than the main one: its handlers never run
        if _installed is not None:
            signal.set_wakeup_fd(-1)
            for signum in SIGNALS:
                if signal.getsignal(signum) == _installed._on_signal:  # noqa: SLF001 - the same module
                    signal.signal(signum, signal.SIG_DFL)
    _release()
