"""An HTTP proxy in front of the real S3 server that fails as it is told, request by request."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.seaweed import S3Server

Kind = Literal[
    "error",  # answer 500 InternalError; the request never arrives
    "slow_down",  # answer 503 SlowDown; the request never arrives
    "forbid",  # answer 403 AccessDenied
    "hang",  # never answer
    "reset",  # reset the connection; the request never arrives
    "lose_reply",  # let the request take effect, then reset the connection
    "truncate",  # send half of the reply's body, then close
    "corrupt",  # flip one bit in the middle of the reply's body
    "corrupt_request",  # flip one bit in the middle of the request's body
    "ignore_conditions",  # write whatever If-Match and If-None-Match say, as some servers do
]

_ERRORS = {"error": (500, "InternalError"), "slow_down": (503, "SlowDown"), "forbid": (403, "AccessDenied")}


@dataclass(slots=True)
class Rule:
    """Do `kind` to requests that match, after letting `skip` of them pass, `times` times (None: always)."""

    kind: Kind
    method: str = ".*"
    path: str = ".*"
    skip: int = 0
    times: int | None = None
    hits: int = 0

    def takes(self, method: str, path: str) -> bool:
        if not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        self.hits += 1
        return True


@dataclass(slots=True)
class S3Proxy:
    """The proxy's address, what it does wrong, and what passed through it."""

    endpoint: str
    rules: list[Rule] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)

    def fail(
        self, kind: Kind, *, method: str = ".*", path: str = ".*", skip: int = 0, times: int | None = None
    ) -> Rule:
        """Add a rule; the first that takes a request decides. The rule counts its `hits`."""
        rule = Rule(kind, method, path, skip, times)
        with self.lock:
            self.rules.append(rule)
        return rule

    def heal(self) -> None:
        """Do nothing wrong from now on."""
        with self.lock:
            self.rules.clear()

    def decide(self, method: str, path: str) -> Kind | None:
        with self.lock:
            self.requests.append((method, path))
            return next((rule.kind for rule in self.rules if rule.takes(method, path)), None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: S3Proxy
    upstream: tuple[str, int]
    server_behind: S3Server

    def answer(self) -> None:
        kind = self.proxy.decide(self.command, self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if kind == "reset":
            return self._reset()
        if kind == "hang":
            self.proxy.closing.wait()
            return self._reset()
        if kind in _ERRORS:
            return self._refuse(*_ERRORS[kind])
        if kind == "ignore_conditions" and {"if-match", "if-none-match"} & {
            name.lower() for name in self.headers
        }:
            return self._put_regardless(body)
        status, headers, content = self._forward(_flipped(body) if kind == "corrupt_request" else body)
        if kind == "lose_reply":
            return self._reset()
        if kind == "corrupt" and content:
            content = _flipped(content)
        return self._reply(status, headers, content[: len(content) // 2] if kind == "truncate" else content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815  (http.server looks for these)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.upstream, timeout=30)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in {"expect", "connection"}:
                connection.putheader(name, value)
        connection.endheaders(body or None)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply.status, reply.getheaders(), content

    def _put_regardless(self, body: bytes) -> None:
        """The conditions are signed: what they guard is written with a request of our own."""
        bucket, _, key = unquote(self.path.partition("?")[0]).lstrip("/").partition("/")
        etag = self.server_behind.client().put_object(Bucket=bucket, Key=key, Body=body)["ETag"]
        self._reply(200, [("ETag", etag)], b"")

    def _reply(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        whole = next(
            (value for name, value in headers if name.lower() == "content-length"), str(len(content))
        )
        self.send_header("Content-Length", whole)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        if int(whole) != len(content):
            self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>said the proxy</Message></Error>".encode()
        self._reply(status, [("Content-Type", "application/xml")], text)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Say nothing: failing is the job."""


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that went away is what was asked for."""


@contextmanager
def running_proxy(server: S3Server) -> Iterator[S3Proxy]:
    """A proxy on a free loopback port in front of `server`."""
    where = urlsplit(server.endpoint)
    assert where.hostname is not None
    assert where.port is not None
    handler = type(
        "Handler", (_Handler,), {"upstream": (where.hostname, where.port), "server_behind": server}
    )
    http_server = _Server(("127.0.0.1", 0), handler)
    proxy = S3Proxy(f"http://127.0.0.1:{http_server.server_port}")
    handler.proxy = proxy  # type: ignore[attr-defined]  # made by type() above
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        with suppress(OSError):
            http_server.shutdown()
            http_server.server_close()
        thread.join()


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with running_proxy(s3_server) as proxy:
        yield proxy
