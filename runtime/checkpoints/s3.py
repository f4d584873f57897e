"""A store in an S3 bucket, or anything that speaks S3 and keeps conditional writes.

boto3 does both the control and the bulk: one plain PUT or GET per shard, several at once, was as fast as
any client measured, and a PUT that carries its own CRC-32 leaves nothing half-finished behind.
"""

from __future__ import annotations

import base64
import re
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ResponseStreamingError,
)
from urllib3.exceptions import HTTPError

from runtime.checkpoints.store import Conflict, Missing, Object, Truncated
from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["S3Store"]

DELETES_PER_REQUEST = 1000  # S3's own limit
READ_CHUNK_BYTES = 1 << 20
# Handed to the socket at once: http.client asks for 16 KiB, which costs 0.1 s of CPU time per GiB more. One
# piece must pass within the time a connection is given, so that a slow uplink is no error.
SEND_CHUNK_BYTES = 256 << 10
PARALLEL_REQUESTS = 16
# A start gives up within half a minute on a location that takes a request and never answers.
CONTROL_READ_S = 10.0
CONTROL_TRIES = 2
BULK_READ_S = 30.0  # of silence; the saver and the reader have tries of their own
_FORBIDDEN = {401, 403}
_LOST_THE_RACE = {409, 412}


class S3Store:
    """A `Store` under `s3://bucket/prefix`. Connections are made by the first call, none by this one."""

    def __init__(self, bucket: str, prefix: str, env: Mapping[str, str]) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
            raise Rejected(
                f"s3://{bucket} names no bucket: S3 takes 3 to 63 lower-case letters, digits, dots, hyphens"
            )
        self.url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        session = _session(env)
        endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
        self._where = _endpoint(endpoint) if endpoint else "AWS"
        self._control = _client(session, endpoint, connect_s=5, read_s=CONTROL_READ_S, tries=CONTROL_TRIES)
        self._bulk = _client(session, endpoint, connect_s=20, read_s=BULK_READ_S, tries=1)

    def get(self, key: str) -> tuple[bytes, str]:
        """See `Store.get`."""
        with self._translated("read", key):
            try:
                return self._get(key)
            except (ResponseStreamingError, IncompleteReadError):
                # The client's own tries end with the headers: a body that breaks off is asked for again.
                return self._get(key)

    def _get(self, key: str) -> tuple[bytes, str]:
        reply = self._control.get_object(Bucket=self._bucket, Key=self._prefix + key)
        return reply["Body"].read(), reply["ETag"]

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """See `Store.put`."""
        view = memoryview(data).cast("B")
        crc32 = base64.b64encode(zlib.crc32(view).to_bytes(4, "big")).decode()
        with self._translated("write", key):
            self._bulk.put_object(
                Bucket=self._bucket, Key=self._prefix + key, Body=_Body(view), ChecksumCRC32=crc32
            )

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        """See `Store.put_if`."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            with self._translated("write", key):
                reply = self._control.put_object(
                    Bucket=self._bucket, Key=self._prefix + key, Body=data, **condition
                )
        except Missing as error:  # what it should have replaced is gone
            raise Conflict(str(error)) from error
        return str(reply["ETag"])

    def read_into(self, key: str, buffer: memoryview) -> None:
        """See `Store.read_into`."""
        with self._translated("read", key):
            reply = self._bulk.get_object(Bucket=self._bucket, Key=self._prefix + key)
            if reply["ContentLength"] != len(buffer):
                reply["Body"].close()
                raise Truncated(f"{key} holds {reply['ContentLength']} bytes, expected {len(buffer)}")
            done = 0
            while done < len(buffer):
                count = reply["Body"].readinto(buffer[done : done + READ_CHUNK_BYTES])
                if not count:  # the connection ended early: the object itself may be whole
                    raise Unavailable(f"{self.url}/{key}: only {done} of {len(buffer)} bytes arrived")
                done += count

    def list(self, prefix: str = "") -> Iterator[Object]:
        """See `Store.list`."""
        pages = self._control.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        with self._translated("list", prefix):
            for page in pages:
                for item in page.get("Contents", []):
                    modified_ms = int(item["LastModified"].timestamp() * 1000)
                    yield Object(item["Key"][len(self._prefix) :], item["Size"], modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Store.delete`."""
        left = [{"Key": self._prefix + key} for key in keys]
        while left:
            batch, left = left[:DELETES_PER_REQUEST], left[DELETES_PER_REQUEST:]
            with self._translated("delete", batch[0]["Key"]):
                reply = self._control.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True}
                )
            for fault in reply.get("Errors", []):
                raise Unavailable(f"cannot delete {fault['Key']} of {self.url}: {fault.get('Code')}")

    @contextmanager
    def _translated(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise self._refusal(verb, key, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise Unavailable(
                f"cannot {verb} {self.url}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error
        except (BotoCoreError, HTTPError, OSError) as error:
            raise Unavailable(
                f"cannot {verb} {self.url}: {self._where} cannot be reached ({_one_line(error)}); "
                "check AWS_ENDPOINT_URL and that the server is up"
            ) from error

    def _refusal(self, verb: str, key: str, error: ClientError) -> Exception:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == "NoSuchBucket":
            return Unavailable(
                f"cannot {verb} {self.url}: {self._where} has no bucket {self._bucket}; "
                "create it, or correct the location"
            )
        if code == "NoSuchKey" or (status == 404 and code in {"404", "NotFound"}):
            return Missing(f"{self.url}/{key}")
        if status in _LOST_THE_RACE:
            return Conflict(f"{self.url}/{key} was written by somebody else")
        if status in _FORBIDDEN:
            return Unavailable(
                f"cannot {verb} {self.url}: {self._where} refuses access ({code}); check AWS_ACCESS_KEY_ID, "
                "AWS_SECRET_ACCESS_KEY and that they may get, put, list and delete there"
            )
        return Unavailable(f"cannot {verb} {self.url}: {self._where} answers {status} {_one_line(error)}")


class _Body:
    """A buffer as the file that boto3 wants to send: nothing is copied, a retry rewinds it.

    A read returns more than was asked for, which its only reader sends as it comes.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int = -1) -> memoryview:
        end = len(self._view) if size < 0 else self._at + max(size, SEND_CHUNK_BYTES)
        chunk = self._view[self._at : end]
        self._at += len(chunk)
        return chunk

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._view))[whence]
        return self._at

    def tell(self) -> int:
        return self._at


def _session(env: Mapping[str, str]) -> boto3.Session:
    """Keys given by name; without them boto3's own chain (profile, web identity, the instance's role)."""
    keys: dict[str, Any] = {}
    if bool(env.get("AWS_ACCESS_KEY_ID")) != bool(env.get("AWS_SECRET_ACCESS_KEY")):
        raise Rejected(
            "one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set without the other: set both"
        )
    if env.get("AWS_ACCESS_KEY_ID"):
        keys = {
            "aws_access_key_id": env["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": env["AWS_SECRET_ACCESS_KEY"],
            "aws_session_token": env.get("AWS_SESSION_TOKEN"),
        }
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    try:
        return boto3.Session(region_name=region, profile_name=env.get("AWS_PROFILE"), **keys)
    except ProfileNotFound as error:
        raise Rejected(f"AWS_PROFILE: {error}; name one that ~/.aws/config holds") from error


def _client(
    session: boto3.Session, endpoint: str | None, *, connect_s: float, read_s: float, tries: int
) -> Any:
    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"total_max_attempts": tries, "mode": "standard"},
        max_pool_connections=PARALLEL_REQUESTS,
        request_checksum_calculation="when_required",  # we bring our own: it is hashed once
        response_checksum_validation="when_required",  # a stronger digest is checked by the reader
        s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint else "auto"},
    )
    return session.client(
        "s3", endpoint_url=endpoint, region_name=session.region_name or "us-east-1", config=config
    )


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Rejected(f"AWS_ENDPOINT_URL is no URL: {url!r}; it looks like https://host:port")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"  # never a password in a message


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
