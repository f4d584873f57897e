"""The services of the stack: what each one is started with, and how one knows that it is well."""

from __future__ import annotations

import shutil
import socket
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infra.local.directory import BUCKET, DataDirectory
from infra.local.environment import metrics_url, prefect_url, s3_url
from infra.local.errors import StackError
from infra.local.ports import HOST

__all__ = ["POOL", "RUNNERS", "SERVERS", "SERVICES", "Service", "service"]

POOL = "slugline"
"""The Prefect work pool that the stack's worker serves."""

Check = Callable[[DataDirectory], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One long-running process of the stack.

    `command` is what it is started with. `check` returns what is wrong with it, or nothing; it asks the
    service itself. `stop_signal` is what ends it, and `stop_wait_s` how long it may take before SIGKILL.
    """

    name: str
    title: str
    command: Callable[[DataDirectory], list[str]]
    check: Check
    url: Callable[[DataDirectory], str | None] = lambda _: None
    stop_signal: str = "TERM"
    stop_wait_s: int = 15


def _weed(directory: DataDirectory) -> list[str]:
    ports = directory.ports()
    # In the order of Ports.needed: each is one more than the one before.
    pairs = ("s3.port", "master.port", "filer.port", "volume.port")
    names = [*(name for pair in pairs for name in (pair, f"{pair}.grpc")), "admin.port"]
    return [
        _program("weed"),
        "mini",
        f"-dir={directory.path / 's3'}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        *(f"-{name}={ports.s3 + n}" for n, name in enumerate(names)),
        f"-admin.port.grpc={ports.weed_admin_grpc}",
        "-s3.autoCreateBucket=false",  # a mistyped bucket is refused, not made
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={directory.identities}",
        f"-bucket={BUCKET}",
        "-admin.ui=false",
        "-webdav=false",
        "-master.telemetry=false",
        "-volume.preStopSeconds=0",
    ]


def _prefect(directory: DataDirectory) -> list[str]:
    port = str(directory.ports().prefect)
    return [*_python("prefect"), "server", "start", "--host", HOST, "--port", port, "--analytics-off"]


def _metrics(directory: DataDirectory) -> list[str]:
    return [
        *_ours("infra.metrics.main"),
        "server",
        "start",
        "--no-login",  # the stack gives its runs the key itself
        "--data",
        str(directory.metrics),
        "--port",
        str(directory.ports().metrics),
    ]


def _worker(_: DataDirectory) -> list[str]:
    start = ["worker", "start", "--pool", POOL, "--type", "process", "--name", socket.gethostname()]
    return [*_python("prefect"), *start, "--no-create-pool-if-not-found", "--install-policy", "never"]


def _rescue(_: DataDirectory) -> list[str]:
    return _ours("flows.rescue")


def _python(module: str) -> list[str]:
    # -P: the directory in which a service runs is no place to import from.
    return [sys.executable, "-P", "-m", module]


def _ours(module: str) -> list[str]:
    # Through `sexpgpu`: a PYTHONPATH may hold folders of the same names, and trainers inherit it.
    return [*_python("sexpgpu"), module]


def _program(name: str) -> str:
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise StackError(f"{name} is not installed: pip install 'slugline[local]'")
    return found


def _answers(url: str) -> str | None:
    """What is wrong with a GET of `url`, or nothing."""
    import httpx

    try:
        # trust_env: a proxy is for the outside.
        reply = httpx.get(url, timeout=5.0, trust_env=False)
    except httpx.TransportError as error:
        return f"does not answer ({type(error).__name__})"
    return None if reply.is_success else f"answers {reply.status_code}"


def _stores(directory: DataDirectory) -> str | None:
    """S3 answers before its first volume can take an object: what counts is an object stored."""
    if problem := _answers(s3_url(directory.ports()) + "/healthz"):
        return problem
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    keys = directory.secrets()
    client: Any = boto3.client(
        "s3",
        endpoint_url=s3_url(directory.ports()),
        region_name="us-east-1",
        aws_access_key_id=keys.s3_access_key,
        aws_secret_access_key=keys.s3_secret_key,
        config=Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 1}, proxies={}),
    )
    try:
        client.put_object(Bucket=BUCKET, Key=".slugline/health", Body=b"ok")
    except (BotoCoreError, ClientError) as error:
        return f"stores nothing ({error})"
    finally:
        client.close()
    return None


def _polls(directory: DataDirectory) -> str | None:
    """Whether the pool's worker of this host says that it is there."""
    import httpx

    url = f"{prefect_url(directory.ports())}/api/work_pools/{POOL}/workers/filter"
    try:
        reply = httpx.post(url, json={}, timeout=5.0, trust_env=False)
    except httpx.TransportError as error:
        return f"Prefect does not answer ({type(error).__name__})"
    if not reply.is_success:
        return f"the work pool {POOL} answers {reply.status_code}"
    online = {worker["name"] for worker in reply.json() if worker["status"] == "ONLINE"}
    return None if socket.gethostname() in online else "has not polled its work pool yet"


SERVERS = (
    Service(
        name="s3",
        title="S3 (SeaweedFS)",
        command=_weed,
        check=_stores,
        url=lambda directory: s3_url(directory.ports()),
        stop_wait_s=30,
    ),
    Service(
        name="prefect",
        title="Prefect",
        command=_prefect,
        check=lambda directory: _answers(prefect_url(directory.ports()) + "/api/health"),
        url=lambda directory: prefect_url(directory.ports()),
    ),
    Service(
        name="metrics",
        title="Metrics",
        command=_metrics,
        check=lambda directory: _answers(metrics_url(directory.ports()) + "/healthz"),
        url=lambda directory: metrics_url(directory.ports()),
    ),
)
"""What everything else needs: first up, last down."""

RUNNERS = (
    Service(
        name="worker",
        title="Prefect worker",
        command=_worker,
        check=_polls,
        # Asked to end, it kills its flow processes without a word; killed, it leaves them to end well.
        stop_signal="KILL",
    ),
    Service(name="rescue", title="rescue", command=_rescue, check=lambda _: None),
)
"""What starts runs."""

SERVICES = (*SERVERS, *RUNNERS)


def service(name: str) -> Service:
    """The service of that name.

    Raises:
        StackError: naming those that there are.
    """
    for candidate in SERVICES:
        if candidate.name == name:
            return candidate
    raise StackError(
        f"no service is called {name!r}: choose of {', '.join(s.name for s in SERVICES)}; "
        "`slugline follow SLUG` shows a run"
    )
