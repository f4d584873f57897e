"""The supervisor of the stack: `supervisord`, one per data directory, asked over its own unix socket."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xmlrpc.client import Fault, ServerProxy

from infra.local.errors import ServiceError, StackError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from infra.local.directory import DataDirectory
    from infra.local.services import Service

__all__ = ["ServiceState", "Supervisor"]

# %(here)s is the folder of the configuration: no path of the user's has to be quoted in it.
_HEAD = """\
[unix_http_server]
file=%(here)s/supervisor.sock
chmod=0700

[supervisord]
directory=%(here)s
childlogdir=%(here)s/logs
logfile=%(here)s/logs/supervisor.log
logfile_maxbytes=5MB
logfile_backups=2
pidfile=%(here)s/supervisor.pid
umask=077

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""

# A service that ends is started again, whatever its exit code; one that ends within `startsecs` waits one
# second more before each try, and is given up (FATAL) after `startretries`, a quarter of an hour.
_PROGRAM = """
[program:{name}]
command={python} -P -m sexpgpu infra.local.launch {name}
directory=%(here)s
autostart=false
autorestart=true
startsecs=3
startretries=40
stopsignal={stop_signal}
stopwaitsecs={stop_wait_s}
redirect_stderr=true
stdout_logfile=%(here)s/logs/{name}.log
stdout_logfile_maxbytes=20MB
stdout_logfile_backups=3
"""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What the supervisor knows of one service. `pid` and `uptime_s` are unset while it does not run.

    `state` is supervisord's word in lower case: running, starting, backoff, stopping, stopped, exited, fatal.
    """

    name: str
    state: str
    pid: int | None
    uptime_s: int | None


class Supervisor:
    """The supervisor of one data directory, whether it runs or not. Holds no connection between calls."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory

    def configure(self, services: Sequence[Service]) -> None:
        """Write what it will be started with."""
        python = shlex.quote(sys.executable).replace("%", "%%")
        programs = (
            _PROGRAM.format(
                name=service.name,
                python=python,
                stop_signal=service.stop_signal,
                stop_wait_s=service.stop_wait_s,
            )
            for service in services
        )
        self._directory.supervisor_config.write_text(_HEAD + "".join(programs))

    def start(self, environ: Mapping[str, str]) -> None:
        """Start it in the background, detached from this terminal, with no service started yet.

        Raises:
            ServiceError: when it does not start.
        """
        result = subprocess.run(
            [sys.executable, "-P", "-m", "supervisor.supervisord", "-c", self._directory.supervisor_config],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            reason = (result.stdout + result.stderr).strip().splitlines()[-1:]
            raise ServiceError(
                f"the supervisor does not start: {''.join(reason)}: see {self._directory.log('supervisor')}"
            )

    def pid(self) -> int | None:
        """The supervisor's process; unset when none answers."""
        with contextlib.suppress(OSError), self._calls() as call:
            return int(call.getPID())
        return None

    def states(self) -> dict[str, ServiceState]:
        """Every service by name; empty when no supervisor answers."""
        with contextlib.suppress(OSError), self._calls() as call:
            return {info["name"]: _state(info) for info in call.getAllProcessInfo()}
        return {}

    def start_service(self, name: str) -> None:
        """Have it started, without waiting; nothing happens to one that is up."""
        with self._calls() as call:
            try:
                call.startProcess(name, False)
            except Fault as fault:
                # ALREADY_STARTED
                if fault.faultCode != 60:
                    raise ServiceError(
                        f"{name} does not start: {fault.faultString}: see {self._directory.log(name)}"
                    ) from fault

    def stop_service(self, name: str) -> None:
        """Have it stopped and wait until it is gone; nothing happens to one that is not up."""
        with self._calls() as call, contextlib.suppress(Fault):
            call.stopProcess(name, True)

    def shut_down(self) -> None:
        """Have the supervisor end, and with it every service that is still up."""
        with self._calls() as call:
            call.shutdown()

    @contextlib.contextmanager
    def _calls(self) -> Iterator[Any]:
        """Raises OSError when no supervisor answers."""
        try:
            from supervisor.xmlrpc import SupervisorTransport  # type: ignore[import-untyped]  # it has no types
        except ImportError as error:
            raise StackError("supervisor is not installed: pip install 'slugline[local]'") from error
        transport = SupervisorTransport(None, None, f"unix://{self._directory.socket}")
        try:
            yield ServerProxy("http://127.0.0.1", transport=transport).supervisor
        finally:
            transport.close()


def _state(info: Mapping[str, Any]) -> ServiceState:
    running = info["pid"] != 0
    return ServiceState(
        name=info["name"],
        state=info["statename"].lower(),
        pid=info["pid"] if running else None,
        uptime_s=info["now"] - info["start"] if running else None,
    )
