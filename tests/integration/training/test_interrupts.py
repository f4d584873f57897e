"""Real signals to real processes; each child prints a line when it is where the test wants it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from runtime.errors import Rejected
from runtime.training.interrupts import Interrupts, lifeline_from

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """
import hashlib, os, signal, sys, threading, time
from runtime.training import interrupts as interrupts_module
from runtime.training.interrupts import Interrupted, Interrupts

def say(text):
    print(text, flush=True)

def stuck():
    "A call into C that no signal interrupts and that lets other threads run."
    say("stuck")
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)

def until(condition):
    while not condition():
        time.sleep(0.005)

"""


@contextmanager
def child(body: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def held(process: subprocess.Popen[str]) -> Iterator[None]:
    """What is done to a process in here is news to it all at once, however long it took."""
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    yield
    process.send_signal(signal.SIGCONT)


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_a_handler_sets_a_flag_and_the_process_goes_on(signum: signal.Signals):
    with child("""
        with Interrupts(notice_s=600) as interrupts:
            interrupts.claimed()
            say("ready")
            until(interrupts.asked)
            left = interrupts.time_left_s()
            say(f"{interrupts.signal_name} {interrupts.give_up.is_set()} {500 < left < 600}")
            sys.exit(128 + interrupts.pending)
    """) as process:
        assert hear(process) == "ready"
        process.send_signal(signum)
        assert hear(process) == f"{signum.name} False True"
        assert process.wait(60) == 128 + signum


def test_the_same_news_twice_at_once_is_one_signal_and_a_later_one_gives_up():
    with child("""
        with Interrupts(notice_s=20) as interrupts:
            interrupts.claimed()
            say("ready")
            until(interrupts.asked)
            say("one")
            until(lambda: interrupts._real_signal_at is not None)
            until(lambda: time.monotonic() - interrupts._real_signal_at > 0.5)
            say(interrupts.give_up.is_set())
            say(interrupts.give_up.wait(60))
            sys.exit(128 + interrupts.pending)
    """) as process:
        assert hear(process) == "ready"
        with held(process):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
        assert hear(process) == "one"
        assert hear(process) == "False"
        process.send_signal(signal.SIGINT)
        assert hear(process) == "True"
        assert process.wait(60) in {128 + signal.SIGTERM, 128 + signal.SIGINT}


@pytest.mark.parametrize(
    ("setup", "code", "says"),
    [
        ("", 128 + signal.SIGTERM, "before the run was claimed: nothing was touched"),
        ("interrupts.claimed()", 128 + signal.SIGTERM, "the notice of 0.3 s is over"),
        (
            "interrupts.claimed(); interrupts.loses_work = True",
            75,
            "steps since the last checkpoint are lost",
        ),
    ],
)
def test_a_main_thread_that_cannot_be_reached_ends_with_the_notice(setup: str, code: int, says: str):
    with child(f"""
        interrupts_module.START_BOUND_S = 600
        with Interrupts(notice_s=0.3) as interrupts:
            {setup}
            stuck()
    """) as process:
        assert hear(process) == "stuck"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == code
        assert time.monotonic() - began >= 0.3
        assert process.stderr is not None
        assert says in process.stderr.read()


def test_before_the_notice_is_over_nothing_is_waited_for_any_more():
    with child("""
        now = [100.0]
        with Interrupts(notice_s=20, clock=lambda: now[0]) as interrupts:
            interrupts.claimed()
            say("ready")
            until(interrupts.asked)
            say(interrupts.give_up.is_set())
            now[0] += 19.1
            os.write(interrupts._wakeup[1], b"!")  # no signal: the watch looks at its clock
            say(f"{interrupts.give_up.wait(60)} {interrupts.insisted} {interrupts.time_left_s() > 0}")
            sys.exit(128 + interrupts.pending)
    """) as process:
        assert hear(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert hear(process) == "False"
        assert hear(process) == "True False True"
        assert process.wait(60) == 143


def test_before_the_claim_two_seconds_are_the_bound_however_long_the_notice():
    with child("""
        assert interrupts_module.START_BOUND_S == 2
        with Interrupts(notice_s=600) as interrupts:
            stuck()
    """) as process:
        assert hear(process) == "stuck"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT


def test_before_the_claim_a_check_raises_what_the_process_exits_with():
    with child("""
        try:
            with Interrupts(notice_s=20) as interrupts:
                interrupts.check()
                say("ready")
                until(interrupts.asked)
                interrupts.check()
        except Interrupted as error:
            say(error)
            sys.exit(error.exit_code)
    """) as process:
        assert hear(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert hear(process) == "interrupted by SIGTERM"
        assert process.wait(60) == 143


def test_a_forked_worker_dies_of_its_own_signal_and_its_parent_hears_nothing():
    with child("""
        with Interrupts(notice_s=20) as interrupts:
            reader, writer = os.pipe()
            worker = os.fork()
            if not worker:
                os.write(writer, b"!")
                signal.pause()
                os._exit(0)
            os.read(reader, 1)
            os.kill(worker, signal.SIGTERM)
            say(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
            say(interrupts.expected_within(0.05))
    """) as process:
        assert hear(process) == f"{-signal.SIGTERM}"
        assert hear(process) == "False"
        assert process.wait(60) == 0


def test_the_end_of_the_life_line_is_a_sigterm_and_then_the_group_dies():
    reader, writer = os.pipe()
    with child(
        f"""
        with Interrupts(notice_s=20, lifeline={reader}) as interrupts:
            interrupts.claimed()
            grandchild = os.fork()
            if not grandchild:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                say(os.getpid())
                stuck()
            until(interrupts.asked)
            say(interrupts.signal_name)
            say(interrupts.give_up.is_set())
        """,
        pass_fds=[reader],
    ) as process:
        os.close(reader)
        heard = {hear(process), hear(process)}
        heard.discard("stuck")
        grandchild = int(heard.pop())
        os.close(writer)
        assert [hear(process), hear(process)] == ["SIGTERM", "False"]
        assert process.wait(60) == -signal.SIGKILL
        assert _is_gone(grandchild)


def test_a_lost_life_line_kills_the_group_at_the_end_of_the_notice_whatever_hangs():
    reader, writer = os.pipe()
    with child(
        f"""
        with Interrupts(notice_s=0.3, lifeline={reader}) as interrupts:
            interrupts.claimed()
            stuck()
        """,
        pass_fds=[reader],
    ) as process:
        os.close(reader)
        assert hear(process) == "stuck"
        os.close(writer)
        assert process.wait(60) == -signal.SIGKILL


def test_a_life_line_beside_a_death_signal_does_not_give_up_the_save():
    reader, writer = os.pipe()
    with child(
        f"""
        with Interrupts(notice_s=20, lifeline={reader}) as interrupts:
            interrupts.claimed()
            say("ready")
            until(lambda: interrupts._lifeline_lost and interrupts._real_signal_at is not None)
            say(interrupts.give_up.is_set())
            os._exit(0)
        """,
        pass_fds=[reader],
    ) as process:
        os.close(reader)
        assert hear(process) == "ready"
        with held(process):
            os.close(writer)
            process.send_signal(signal.SIGTERM)
        assert hear(process) == "False"


def test_without_a_signal_the_handlers_are_given_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Interrupts(notice_s=20) as interrupts:
        assert signal.getsignal(signal.SIGTERM) != before[0]
        assert not interrupts.asked()
        assert interrupts.time_left_s() == float("inf")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_terminal_that_goes_away_is_nothing_to_a_run_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(notice_s=20):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("text", ["", "x", "-1", "99999", str(2**80)])
def test_a_life_line_that_is_no_open_pipe_is_rejected(text: str):
    with pytest.raises(Rejected, match="SLUGLINE_LIFELINE_FD must be the number of an open pipe, got"):
        lifeline_from({"SLUGLINE_LIFELINE_FD": text})


def test_no_variable_means_no_life_line():
    assert lifeline_from({}) is None


def _is_gone(pid: int) -> bool:
    """Whether the process ended: reaped by its new parent, or waiting for that."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - it may vanish while it is read
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False
