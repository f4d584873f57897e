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

# supervisord's own numbers.
_SHUTDOWN_STATE = 6
_ALREADY_STARTED = 60


class _NotUpError(ServiceError):
    """Nobody is there to be asked, which is no news to `status` and `down`."""

    def __init__(self, directory: DataDirectory, what: str) -> None:
        super().__init__(
            f"the supervisor of the stack in {directory.path} {what}: see {directory.log('supervisor')}; "
            "slugline up starts it again"
        )


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
            said = (result.stdout + result.stderr).strip().splitlines()
            # What comes after its error is the way to its help.
            reason = next((line for line in said if line.startswith("Error: ")), "".join(said[-1:]))
            raise ServiceError(
                f"the supervisor does not start: {reason.removeprefix('Error: ')}: "
                f"see {self._directory.log('supervisor')}"
            )

    def pid(self) -> int | None:
        """The supervisor's process; unset when none answers, or it is ending."""
        with contextlib.suppress(_NotUpError), self._calls() as call:
            return int(call.getPID())
        return None

    def states(self) -> dict[str, ServiceState]:
        """Every service by name; empty when no supervisor answers, or it is ending."""
        with contextlib.suppress(_NotUpError), self._calls() as call:
            return {info["name"]: _state(info) for info in call.getAllProcessInfo()}
        return {}

    def start_service(self, name: str) -> None:
        """Have it started, without waiting; nothing happens to one that is up.

        Raises:
            ServiceError: when it does not start, or the supervisor is gone.
        """
        with self._calls() as call:
            try:
                call.startProcess(name, False)
            except Fault as fault:
                if fault.faultCode == _SHUTDOWN_STATE:
                    raise
                if fault.faultCode != _ALREADY_STARTED:
                    raise ServiceError(
                        f"{name} does not start: {fault.faultString}: see {self._directory.log(name)}"
                    ) from fault

    def stop_service(self, name: str) -> None:
        """Have it stopped and wait until it is gone; nothing happens to one that is not up."""
        with contextlib.suppress(_NotUpError, Fault), self._calls() as call:
            call.stopProcess(name, True)

    def shut_down(self) -> None:
        """Have the supervisor end, and with it every service that is still up."""
        with contextlib.suppress(_NotUpError), self._calls() as call:
            call.shutdown()

    @contextlib.contextmanager
    def _calls(self) -> Iterator[Any]:
        """Raises _NotUpError when no supervisor answers, or the one that does is ending."""
        try:
            from supervisor.xmlrpc import SupervisorTransport  # type: ignore[import-untyped]  # it has no types
        except ImportError as error:
            raise StackError("supervisor is not installed: pip install 'slugline[local]'") from error
        transport = SupervisorTransport(None, None, f"unix://{self._directory.socket}")
        try:
            yield ServerProxy("http://127.0.0.1", transport=transport).supervisor
        except OSError as error:
            raise _NotUpError(self._directory, "does not answer") from error
        except Fault as fault:
            if fault.faultCode == _SHUTDOWN_STATE:
                raise _NotUpError(self._directory, "is ending") from fault
            raise
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
