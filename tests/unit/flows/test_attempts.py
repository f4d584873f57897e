"""An attempt: a process group that is started, watched, stopped, and never outlives its flow process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from flows import child
from flows.attempts import Attempt, Plan, signals_held, wait_gone
from flows.processes import ProcessId, is_alive, is_running
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]


def plan(tmp_path: Path, program: str, *, notice_s: float = 20.0, **environment: str) -> Plan:
    return Plan(
        command=[sys.executable, "-c", dedent(program)],
        folder=tmp_path,
        log=tmp_path / "attempt.log",
        summary=tmp_path / "attempt.json",
        environment={**os.environ, **environment},
        notice_s=notice_s,
    )


def pid_in(path: Path) -> int:
    return int(wait_until(lambda: path.read_text() if path.exists() else "", within_s=60))


def group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


DEAF_WITH_GRANDCHILD = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open("half", "w").write(str(grandchild.pid))
    os.rename("half", "grandchild")
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(76)", 76),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
    ],
)
def test_waiting_returns_how_the_trainer_ended(tmp_path, program, status):
    with Attempt(plan(tmp_path, program)) as attempt:
        assert attempt.wait() == status


def test_its_errors_go_to_its_log_after_what_stood_there_and_its_output_to_the_summary(tmp_path):
    (tmp_path / "attempt.log").write_text("before\n")
    with Attempt(plan(tmp_path, "import sys; print('out'); print('err', file=sys.stderr)")) as attempt:
        attempt.wait()
    assert (tmp_path / "attempt.log").read_text() == "before\nerr\n"
    assert (tmp_path / "attempt.json").read_text() == "out\n"


def test_a_program_that_does_not_exist_ends_like_a_failure_that_is_in_the_log(tmp_path):
    missing = plan(tmp_path, "")
    with Attempt(Plan(**{**plan_fields(missing), "command": ["/no/such/program"]})) as attempt:
        assert attempt.wait() == 127
    assert (
        tmp_path / "attempt.log"
    ).read_text() == "/no/such/program cannot be started: No such file or directory\n"


def plan_fields(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in Plan.__slots__}


def test_stopping_gives_the_trainer_its_notice(tmp_path):
    program = """
        import os, signal, sys, time
        def save(*_):
            time.sleep(0.5)
            open("saved", "w").close()
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        open("ready", "w").write(str(os.getpid()))
        signal.pause()
    """
    with Attempt(plan(tmp_path, program)) as attempt:
        pid_in(tmp_path / "ready")
        assert attempt.stop() == 143
    assert (tmp_path / "saved").exists()


def test_nothing_of_a_group_that_ignores_sigterm_outlives_the_notice(tmp_path):
    with Attempt(plan(tmp_path, DEAF_WITH_GRANDCHILD, notice_s=0.3)) as attempt:
        grandchild = pid_in(tmp_path / "grandchild")
        group = os.getpgid(grandchild)
        assert attempt.stop() == -signal.SIGKILL
    wait_until(lambda: group_is_gone(group), within_s=60)


def test_grandchildren_that_a_trainer_leaves_behind_are_swept(tmp_path):
    program = """
        import os, subprocess, sys
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open("grandchild", "w").write(str(grandchild.pid))
        os._exit(0)
    """
    with Attempt(plan(tmp_path, program)) as attempt:
        assert attempt.wait() == 0
    grandchild = pid_in(tmp_path / "grandchild")
    wait_until(lambda: not is_running(grandchild), within_s=60)


def test_leaving_by_an_exception_leaves_no_process(tmp_path):
    groups = []
    with contextlib.suppress(KeyError), Attempt(plan(tmp_path, DEAF_WITH_GRANDCHILD, notice_s=0.2)):
        groups.append(os.getpgid(pid_in(tmp_path / "grandchild")))
        raise KeyError
    wait_until(lambda: group_is_gone(groups[0]), within_s=60)


def test_a_process_that_cannot_be_started_leaves_no_guard(tmp_path):
    before = guards()
    with (
        pytest.raises(FileNotFoundError),
        Attempt(Plan(**{**plan_fields(plan(tmp_path, "")), "folder": tmp_path / "no"})),
    ):
        pass
    assert guards() <= before


def guards() -> set[int]:
    """Those that this thread has started: of tests that run beside it, others come and go."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    return {int(pid) for pid in children if b"child.py\0guard" in Path(f"/proc/{pid}/cmdline").read_bytes()}


FLOW_PROCESS = """
    import sys
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from tests.unit.flows.test_attempts import Attempt, plan
    with Attempt(plan(Path.cwd(), open("program.py").read(), notice_s={notice_s})) as attempt:
        attempt.wait()
"""


def start_flow_process(tmp_path: Path, program: str, *, notice_s: float) -> subprocess.Popen[bytes]:
    (tmp_path / "program.py").write_text(dedent(program))
    flow = dedent(FLOW_PROCESS).format(root=str(ROOT), notice_s=notice_s)
    return subprocess.Popen([sys.executable, "-c", flow], cwd=tmp_path, start_new_session=True)


def test_a_process_that_the_kernel_is_not_done_with_does_not_hide_how_its_block_was_left(
    tmp_path, monkeypatch, caplog
):
    """Freeing much pinned memory takes longer than a few seconds; a cancelled run was Failed then."""
    monkeypatch.setattr("flows.attempts.REAP_S", 0.0)
    given = plan(tmp_path, "import time; time.sleep(600)", notice_s=0.0)
    with contextlib.suppress(KeyError), Attempt(given) as attempt:
        trainer, guard = attempt._trainer, attempt._guard
        monkeypatch.setattr(Attempt, "_signal_group", lambda *_: None)
        raise KeyError
    assert caplog.text.count("got SIGKILL and stays") == 2
    for process in (trainer, guard):
        assert process is not None
        process.kill()
        process.wait()


def test_a_trainer_saves_when_its_flow_process_is_killed(tmp_path):
    """By the kernel's signal and by the end of its life line: this one looks at both."""
    program = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: open("signalled", "w").close())
        open("ready", "w").write(str(os.getpid()))
        os.read(int(os.environ["SLUGLINE_LIFELINE_FD"]), 1)
        while not os.path.exists("signalled"):
            time.sleep(0.01)
        open("saved", "w").close()
    """
    flow = start_flow_process(tmp_path, program, notice_s=20)
    trainer = pid_in(tmp_path / "ready")
    flow.kill()
    flow.wait()
    wait_until((tmp_path / "saved").exists, within_s=60)
    wait_until(lambda: not is_running(trainer), within_s=60)


def test_a_deaf_trainer_and_its_grandchild_do_not_outlive_a_killed_flow_process_by_more_than_the_notice(
    tmp_path,
):
    flow = start_flow_process(tmp_path, DEAF_WITH_GRANDCHILD, notice_s=0.3)
    group = os.getpgid(pid_in(tmp_path / "grandchild"))
    flow.kill()
    flow.wait()
    wait_until(lambda: group_is_gone(group), within_s=60)


def test_a_trainer_whose_parent_is_gone_before_it_could_ask_does_not_start(tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", "-S", child.__file__, "exec", "1", "touch", str(tmp_path / "started")],
        check=False,
    )
    assert done.returncode == 143
    assert not (tmp_path / "started").exists()


def test_a_signal_that_comes_during_the_sweep_is_delivered_after_it():
    came = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("handled"))
    try:
        with signals_held():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            came.append("swept")
        assert came == ["swept", "handled"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_wait_is_left_when_a_signal_handler_raises_and_the_trainer_is_stopped(tmp_path):
    class Terminated(BaseException):
        pass

    def handler(*_args):
        raise Terminated

    program = """
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
        open("ready", "w").write(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGTERM)
        while True:
            signal.pause()
    """
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Terminated), Attempt(plan(tmp_path, program)) as attempt:
            attempt.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    trainer = pid_in(tmp_path / "ready")
    wait_until(lambda: not is_running(trainer), within_s=60)


def test_a_process_is_known_by_more_than_its_number():
    me = ProcessId.of(os.getpid())
    assert is_alive(me) is True
    reused = ProcessId(host=me.host, boot=me.boot, pid=me.pid, start_ticks=me.start_ticks + 1)
    assert is_alive(reused) is False
    rebooted = ProcessId(host=me.host, boot="another", pid=me.pid, start_ticks=me.start_ticks)
    assert is_alive(rebooted) is False
    elsewhere = ProcessId(host="elsewhere", boot=me.boot, pid=me.pid, start_ticks=me.start_ticks)
    assert is_alive(elsewhere) is None


def test_a_zombie_is_dead_and_a_missing_process_has_no_identity():
    process = subprocess.Popen([sys.executable, "-c", ""])
    identity = ProcessId.of(process.pid)
    wait_until(lambda: not is_alive(identity), within_s=60)
    process.wait()
    with pytest.raises(ProcessLookupError):
        ProcessId.of(process.pid)


def test_a_process_that_does_not_go_is_not_waited_for_for_ever():
    me = ProcessId.of(os.getpid())
    assert wait_gone(me, alive=lambda _process: True, timeout_s=0.0) is False
    assert wait_gone(me, alive=lambda _process: None, timeout_s=0.0) is True
