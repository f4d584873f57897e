"""infra.local.stack: what does not come up is named with its log; what is left is found and ended."""

import os
import subprocess
import sys

import pytest

from infra.local import stack
from infra.local.directory import DataDirectory
from infra.local.environment import MARKER
from infra.local.errors import ServiceError
from infra.local.processes import processes
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
