"""The environments of the stack: what its services run with, and what a shell needs to use it."""

from __future__ import annotations

import os
import sysconfig
from typing import TYPE_CHECKING

from infra.local.directory import BUCKET
from infra.local.errors import StackError
from infra.local.ports import HOST, Ports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.local.directory import DataDirectory

__all__ = [
    "MARKER",
    "client_environment",
    "command_environment",
    "metrics_url",
    "prefect_url",
    "s3_url",
    "service_environment",
]

MARKER = "SLUGLINE_STACK"
"""Set to the data directory in every process of a stack, so that `down` finds each of them again."""

# Of the caller's own, these would point a service at somebody else's server.
_FOREIGN = ("AWS_", "O41_", "PREFECT_", "SYVAIN_")

_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}


def prefect_url(ports: Ports) -> str:
    """The address of Prefect's pages; its API is at `/api`."""
    return f"http://{HOST}:{ports.prefect}"


def metrics_url(ports: Ports) -> str:
    """The address of the Metrics server."""
    return f"http://{HOST}:{ports.metrics}"


def s3_url(ports: Ports) -> str:
    """The S3 endpoint."""
    return f"http://{HOST}:{ports.s3}"


def client_environment(directory: DataDirectory, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with which `sexpgpu`, `prefect` and any S3 client use this stack.

    Raises:
        StackError: when the stack has never been up.
    """
    try:
        keys = directory.secrets()
    except FileNotFoundError as error:
        raise StackError(f"there is no stack in {directory.path}: start one with slugline up") from error
    ports = directory.ports()
    variables = {
        "AWS_ACCESS_KEY_ID": keys.s3_access_key,
        "AWS_ENDPOINT_URL": s3_url(ports),
        "AWS_REGION": "us-east-1",
        "AWS_SECRET_ACCESS_KEY": keys.s3_secret_key,
        "DO_NOT_TRACK": "1",
        # Both: Python prefers the small one, Go the other.
        "NO_PROXY": _without_proxy(environ),
        "no_proxy": _without_proxy(environ),
        # Trainers share their cores with the servers: threads that spin while they wait for each other make
        # each step several times slower as soon as a core is taken. The bits are the same.
        "OMP_WAIT_POLICY": environ.get("OMP_WAIT_POLICY", "passive"),
        "PREFECT_API_URL": prefect_url(ports) + "/api",
        # Where `div run` ships to, and a run without a location of its own keeps everything.
        "SLUGLINE_LOCATION": f"s3://{BUCKET}",
        "SYVAIN_METRICS_HOST": metrics_url(ports),
    }
    if key := directory.metrics_key():
        variables["SYVAIN_METRICS_API_KEY"] = key
    return variables


def service_environment(directory: DataDirectory, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of every service, and so of every flow and trainer that the worker starts."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_FOREIGN)}
    ports = directory.ports()
    return {
        **kept,
        **client_environment(directory, environ),
        **_QUIET,
        MARKER: str(directory.path),
        # `python` and `sexpgpu` in a service are those that it was started with, activated or not.
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), environ.get("PATH", os.defpath)]),
        "SLUGLINE_TARGETS": "syvain",
        "SLUGLINE_WORK_DIR": str(directory.runs),
        "AWS_EC2_METADATA_DISABLED": "true",
        # The store gives memory back instead of keeping 2 GiB after a gigabyte was uploaded.
        "GOMEMLIMIT": "600MiB",
        "PREFECT_HOME": str(directory.path / "prefect"),
        # A server that is away for minutes costs a run nothing: its flow process asks again.
        "PREFECT_CLIENT_MAX_RETRIES": "30",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        # Prefect has no password here: a web page of another origin shall not talk to it.
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": prefect_url(ports),
    }


def command_environment(directory: DataDirectory, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that talks to the stack and is none of its processes."""
    variables = service_environment(directory, environ)
    # A command tells its user that a server is away; the stack's own processes wait for it.
    del variables[MARKER], variables["PREFECT_CLIENT_MAX_RETRIES"]
    return variables


def _without_proxy(environ: Mapping[str, str]) -> str:
    """What the caller keeps away from its proxy, and this machine."""
    given = [environ.get(name, "") for name in ("NO_PROXY", "no_proxy")]
    hosts = [host.strip() for host in ",".join(given).split(",") if host.strip()]
    return ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))
