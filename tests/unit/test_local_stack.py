"""infra.local.stack: what does not come up is named with its log; what is left is found and ended."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.local import stack
from infra.local.directory import DataDirectory
from infra.local.environment import MARKER
from infra.local.errors import ServiceError
from infra.local.processes import processes, send, wait_until
from infra.local.services import SERVICES, service
from infra.local.supervision import ServiceState, Supervisor

WILLING = "import time; print('ready', flush=True); time.sleep(600)"
SAVES = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); " + WILLING
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WILLING


@pytest.fixture
def directory(tmp_path):
    made = DataDirectory.at(tmp_path)
    made.create()
    return made


@pytest.fixture
def start(directory):
    started = []

    def start(code: str, data: str = str(directory.path), title: str = "") -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, title], env={**os.environ, MARKER: data}, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("state", "says"),
    [("backoff", "ends again and again"), ("fatal", "ended too often and was given up")],
)
def test_a_service_that_does_not_come_up_is_named_with_its_log(directory, monkeypatch, state, says):
    class Ending(Supervisor):
        def states(self):
            return {"s3": ServiceState("s3", state, None, None)}

    monkeypatch.setattr(stack, "GIVE_UP_AFTER_S", 0.0)
    with pytest.raises(
        ServiceError, match=rf"^s3 does not come up: it {says}: see .*/logs/s3\.log$"
    ) as error:
        stack._wait_well(directory, Ending(directory), service("s3"), deadline=float("inf"))
    assert error.value.exit_code == 75


def test_without_a_supervisor_nothing_is_up(directory):
    assert Supervisor(directory).pid() is None
    assert [item.problem for item in stack.status(directory)] == ["is not up"] * len(SERVICES)


def test_down_ends_what_is_left_and_nothing_else(directory, start):
    willing, other = start(WILLING), start(WILLING, data="/another/stack")
    assert [process.pid for process in processes(directory)] == [willing.pid]
    assert stack.down(directory, say=lambda _: None) == 0
    assert willing.wait(60) < 0
    assert other.poll() is None


def test_down_kills_what_does_not_end_in_time_and_says_so(directory, start):
    stubborn = start(STUBBORN)
    said: list[str] = []
    assert stack.down(directory, say=said.append, save_timeout_s=0.5) == 1
    assert stubborn.wait(60) == -9
    assert said


def test_without_its_supervisor_what_starts_runs_is_ended_before_the_runs_are_told(directory, start):
    """Rescue and the worker lived on: they started again what had just saved, and that was killed."""
    runner, flow = start(WILLING, title="flows.rescue"), start(SAVES, title="prefect.engine")
    assert stack.down(directory, say=lambda _: None, save_timeout_s=60) == 0
    assert runner.wait(60) == -9
    assert flow.wait(60) == 0


def test_this_process_and_those_above_it_are_never_ended(directory):
    # A command that itself runs inside a stack.
    code = (
        "import sys; from pathlib import Path\n"
        "from infra.local.directory import DataDirectory\n"
        "from infra.local.processes import processes\n"
        "print(processes(DataDirectory(Path(sys.argv[1]))))"
    )
    shell = f'"{sys.executable}" -c "$CODE" "$DATA"; true'
    env = {**os.environ, MARKER: str(directory.path), "CODE": code, "DATA": str(directory.path)}
    result = subprocess.run(["sh", "-c", shell], env=env, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


STOPPING = """\
[unix_http_server]
file=%(here)s/supervisor.sock
[supervisord]
logfile=%(here)s/logs/supervisor.log
pidfile=%(here)s/supervisor.pid
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[program:s3]
command={python} -c "{code}"
autostart=false
startsecs=0
stopwaitsecs=2
stdout_logfile=%(here)s/logs/s3.log
"""
WELL = dataclasses.replace(service("s3"), check=lambda _: None, stop_wait_s=2)


@pytest.fixture
def supervisor():
    """A real one whose `s3` takes two seconds to end."""
    # A socket's path is short.
    made = DataDirectory.at(Path(tempfile.mkdtemp(prefix="stack-")))
    made.create()
    made.supervisor_config.write_text(STOPPING.format(python=sys.executable, code=STUBBORN))
    supervisor = Supervisor(made)
    supervisor.start({**os.environ, MARKER: str(made.path)})
    stack._start(made, supervisor, (WELL,), say=lambda _: None)
    assert wait_until(lambda: made.log("s3").read_text() == "ready\n", timeout_s=60)
    yield supervisor
    send(processes(made), signal.SIGKILL)
    shutil.rmtree(made.path)


def test_a_service_that_is_still_ending_is_started_once_it_has_ended(supervisor):
    """`up` came after a `down` that was cut short: its start was lost, and it waited for minutes."""
    before = supervisor.states()["s3"].pid
    with ThreadPoolExecutor(1) as other:
        stopped = other.submit(supervisor.stop_service, "s3")
        assert wait_until(lambda: supervisor.states()["s3"].state == "stopping", timeout_s=60)
        stack._start(supervisor._directory, supervisor, (WELL,), say=lambda _: None)
        stopped.result()
    after = supervisor.states()["s3"]
    assert after.state == "running"
    assert after.pid not in {before, None}


def test_a_supervisor_that_is_ending_is_none_and_down_ends_what_is_left(supervisor):
    directory = supervisor._directory
    pid = supervisor.pid()
    os.kill(pid, signal.SIGTERM)
    assert wait_until(lambda: supervisor.pid() is None, timeout_s=60)
    assert Path(f"/proc/{pid}").exists()
    assert supervisor.states() == {}
    assert stack.left_alone(directory) == 2
    with pytest.raises(ServiceError, match=r"is ending: see .*supervisor\.log; slugline up starts it again"):
        supervisor.start_service("s3")
    stack.down(directory, say=lambda _: None, save_timeout_s=0.5)
    assert processes(directory) == []


def test_without_a_supervisor_what_needs_one_says_so(directory):
    """The refused connection was told as a working directory that is gone."""
    with pytest.raises(ServiceError, match=r"does not answer: see .*supervisor\.log; slugline up"):
        Supervisor(directory).start_service("s3")
    Supervisor(directory).stop_service("s3")
    Supervisor(directory).shut_down()


def test_without_its_supervisor_what_starts_runs_is_no_run_in_flight(directory, start):
    """Killed and not yet gone, it was counted as a run that saves."""
    start(WILLING, title="flows.rescue")
    said: list[str] = []
    assert stack.down(directory, say=said.append) == 0
    assert said == []


def test_a_service_that_has_only_just_started_is_not_yet_well(directory):
    state = ServiceState("s3", "starting", 1, 0)
    assert stack._status(directory, WELL, state).problem == "is starting"


def test_a_supervisor_that_does_not_start_says_its_reason(directory):
    directory.supervisor_config.write_text("[supervisord]\nloglevel=loud\n")
    with pytest.raises(ServiceError, match=r"^the supervisor does not start: bad logging level .*: see "):
        Supervisor(directory).start(os.environ)
