"""The verbs of the stack on one machine: up, down, status."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.local.environment import MARKER, service_environment
from infra.local.errors import ServiceError, StackError
from infra.local.logs import last_lines
from infra.local.ports import Ports, require_free
from infra.local.processes import Process, processes, send, wait_until
from infra.local.services import POOL, RUNNERS, SERVERS, SERVICES, Service
from infra.local.supervision import ServiceState, Supervisor

if TYPE_CHECKING:
    from infra.local.directory import DataDirectory

__all__ = ["ServiceStatus", "down", "left_alone", "status", "up"]

Say = Callable[[str], None]

# The first start of Prefect makes its database and compiles its modules; a busy machine takes its time.
UP_TIMEOUT_S = 180.0
GIVE_UP_AFTER_S = 10.0
# Runs in flight save within their notice (20 s unless set); Prefect's own grace is 30.
SAVE_TIMEOUT_S = 35.0

_WORDS = {"backoff": "ends again and again", "fatal": "ended too often and was given up"}
_ENDS = frozenset(_WORDS)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service as `status` tells it. `problem` is unset when it is well."""

    service: Service
    state: ServiceState | None
    problem: str | None
    url: str | None


def up(
    directory: DataDirectory,
    *,
    ports: Ports,
    environ: Mapping[str, str],
    say: Say,
) -> bool:
    """Start everything and wait until each service is well; false when it was up already.

    Raises:
        StackError: a port is not free, or the stack is up on other ports; nothing was started.
        ServiceError: a service does not come up; what did stays up, for its log to be read.
    """
    directory.create()
    with directory.locked():
        supervisor = Supervisor(directory)
        if supervisor.pid() is not None:
            _require_same(directory, ports)
            already = all(state.state == "running" for state in supervisor.states().values())
            if already:  # that is all there is to say
                say = _nothing
        else:
            already = False
            _start_supervisor(directory, supervisor, ports=ports, environ=environ, say=say)
        _start(directory, supervisor, SERVERS, say=say)
        if not already:
            _deploy(directory, environ)
        _start(directory, supervisor, RUNNERS, say=say)
    return not already


def down(directory: DataDirectory, *, say: Say, save_timeout_s: float = SAVE_TIMEOUT_S) -> int:
    """Stop everything; runs in flight save first, and the next `up` resumes them.

    Returns how many processes had to be killed.

    Raises:
        ServiceError: when a process stays all the same.
    """
    if not directory.path.is_dir():
        return 0
    with directory.locked():
        return _stop(directory, say=say, save_timeout_s=save_timeout_s)


def status(directory: DataDirectory) -> list[ServiceStatus]:
    """Every service, asked whether it is well."""
    states = Supervisor(directory).states()
    return [_status(directory, service, states.get(service.name)) for service in SERVICES]


def left_alone(directory: DataDirectory) -> int:
    """How many processes of the stack live on without their supervisor."""
    return 0 if Supervisor(directory).pid() is not None else len(processes(directory))


def _status(directory: DataDirectory, service: Service, state: ServiceState | None) -> ServiceStatus:
    if state is None or state.pid is None:
        problem: str | None = "is not up" if state is None else _WORDS.get(state.state, f"is {state.state}")
    else:
        problem = service.check(directory)
        if problem is None and state.state != "running":
            # It may still fall over: the supervisor calls it running after a few seconds.
            problem = f"is {state.state}"
    return ServiceStatus(service, state, problem, service.url(directory))


def _require_same(directory: DataDirectory, ports: Ports) -> None:
    if (current := directory.ports()) != ports:
        raise StackError(
            f"the stack in {directory.path} is up on other ports (Prefect {current.prefect}, "
            f"Metrics {current.metrics}, S3 {current.s3}): stop it first with slugline down"
        )


def _start_supervisor(
    directory: DataDirectory, supervisor: Supervisor, *, ports: Ports, environ: Mapping[str, str], say: Say
) -> None:
    if processes(directory):
        say("services of an earlier stack run on without their supervisor: stopping them first")
        _stop(directory, say=say, save_timeout_s=SAVE_TIMEOUT_S)
    require_free(ports)
    for service in SERVICES:
        # What is not installed is said before anything starts.
        service.command(directory)
    directory.remember(ports)
    supervisor.configure(SERVICES)
    supervisor.start({**environ, MARKER: str(directory.path)})
    if not wait_until(lambda: supervisor.pid() is not None, timeout_s=10.0):
        raise ServiceError(f"the supervisor does not answer: see {directory.log('supervisor')}")


def _start(
    directory: DataDirectory, supervisor: Supervisor, services: tuple[Service, ...], *, say: Say
) -> None:
    """Start some services side by side and wait until all of them are well."""
    began = time.monotonic()
    for service in services:
        # One that a `down` which was cut short had asked to end is not started before it has ended.
        _wait_ended(supervisor, service)
        supervisor.start_service(service.name)
    for service in services:
        _wait_well(directory, supervisor, service, deadline=began + UP_TIMEOUT_S)
        say(f"{service.title} is up after {time.monotonic() - began:.1f} s")


def _wait_ended(supervisor: Supervisor, service: Service) -> None:
    """Wait while the service is on its way down."""

    def ended() -> bool:
        state = supervisor.states().get(service.name)
        return state is None or state.state != "stopping"

    wait_until(ended, timeout_s=service.stop_wait_s + 5.0)


def _nothing(_text: str) -> None:
    """Say nothing."""


def _deploy(directory: DataDirectory, environ: Mapping[str, str]) -> None:
    """Have the work pool and the deployment made: the worker serves nothing without them."""
    log = directory.log("deploy")
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sexpgpu", "flows.deploy", "--pool", POOL],
            env=service_environment(directory, environ),
            cwd=directory.path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        last = "".join(last_lines(log, 1))
        raise ServiceError(f"the deployment cannot be made: {last or done.returncode}: see {log}")


def _wait_well(
    directory: DataDirectory, supervisor: Supervisor, service: Service, *, deadline: float
) -> None:
    problem: str | None = None
    # The first try may have met something that passes: one is not enough to give up.
    patience = time.monotonic() + GIVE_UP_AFTER_S

    def settled() -> bool:
        nonlocal problem
        state = supervisor.states().get(service.name)
        problem = _status(directory, service, state).problem
        hopeless = state is not None and state.state in _ENDS and time.monotonic() > patience
        return problem is None or hopeless

    wait_until(settled, timeout_s=deadline - time.monotonic(), every_s=0.2)
    if problem is not None:
        raise ServiceError(
            f"{service.name} does not come up: it {problem}: see {directory.log(service.name)}"
        )


def _stop(directory: DataDirectory, *, say: Say, save_timeout_s: float) -> int:
    supervisor = Supervisor(directory)
    supervised = supervisor.pid() is not None
    if supervised:
        # Nothing new may start: neither from the queue nor as a resume of what ends now.
        for service in reversed(RUNNERS):
            supervisor.stop_service(service.name)
    else:
        # As above; asked to end, the worker would kill its flow processes without a word.
        _kill_runners(directory)
    killed = _stop_runs(directory, supervisor, say=say, timeout_s=save_timeout_s)
    if supervised:
        for service in reversed(SERVERS):
            supervisor.stop_service(service.name)
        supervisor.shut_down()
    elif left := processes(directory):
        send(left, signal.SIGTERM)
    if not wait_until(lambda: not processes(directory), timeout_s=15.0):
        left = processes(directory)
        killed += len(left)
        send(left, signal.SIGKILL)
    _require_gone(directory)
    return killed


def _kill_runners(directory: DataDirectory) -> None:
    """End what starts runs, and wait until it is gone: none of it is a run in flight."""

    def runners() -> list[Process]:
        return [process for process in processes(directory) if process.is_runner]

    send(runners(), signal.SIGKILL)
    wait_until(lambda: not runners(), timeout_s=10.0)


def _stop_runs(directory: DataDirectory, supervisor: Supervisor, *, say: Say, timeout_s: float) -> int:
    """End the runs in flight: each flow process is told, its trainer saves; what stays is killed."""

    def runs() -> list[Process]:
        kept = {state.pid for state in supervisor.states().values()} | {supervisor.pid()}
        return [
            process for process in processes(directory) if process.pid not in kept and not process.is_server
        ]

    in_flight = runs()
    if not in_flight:
        return 0
    flows = [process for process in in_flight if process.is_flow]
    # A trainer is told by its flow process; told twice, it would give up its save.
    told = flows or in_flight
    say(f"{len(told)} in flight: waiting up to {timeout_s:.0f} s for what is trained to be saved")
    send(told, signal.SIGTERM)
    wait_until(lambda: not runs(), timeout_s=timeout_s)
    left = runs()
    send(left, signal.SIGKILL)
    return len(left)


def _require_gone(directory: DataDirectory) -> None:
    if not wait_until(lambda: not processes(directory), timeout_s=10.0):
        left = ", ".join(f"{process.pid} ({process.command[0]})" for process in processes(directory))
        raise ServiceError(f"processes of the stack in {directory.path} do not end: {left}: end them by hand")
