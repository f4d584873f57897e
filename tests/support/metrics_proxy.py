"""A proxy in front of the real Metrics server that fails as it is told, and remembers what was asked."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MetricsProxy", "Seen", "running_metrics_proxy"]

Fault = int | Literal["reset", "lose_reply"]
"""An HTTP status in place of the server's; a reset before the server sees the request, or after it has."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: its path, and the names of the events in it."""

    path: str
    events: tuple[str, ...]
    body: Any


@dataclass(slots=True)
class MetricsProxy:
    """`faults` holds, by what a request asks for, what befalls the next such requests.

    A request asks for the name of its first event without `syvain.v2.`, else for its path.
    `change`, if set, is given the JSON of every reply that is one document, and returns what is passed on.
    """

    url: str = ""
    faults: dict[str, deque[Fault]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    change: Callable[[str, Any], Any] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, what: str, *faults: Fault) -> None:
        """Let the next requests for `what` fail, one after another."""
        with self.lock:
            self.faults.setdefault(what, deque()).extend(faults)

    def asked(self) -> list[str]:
        """What was asked for since the last call, in order."""
        with self.lock:
            names = [one.events[0] if one.events else one.path for one in self.seen]
            self.seen.clear()
        return names

    def decide(self, path: str, body: bytes) -> tuple[str, Fault | None]:
        """Take a request down and return what it asks for and what befalls it."""
        parsed = json.loads(body) if body else []
        events = parsed if isinstance(parsed, list) else [parsed]
        names = tuple(event["event"].removeprefix("syvain.v2.") for event in events if "event" in event)
        what = names[0] if names else path
        with self.lock:
            self.seen.append(Seen(path, names, parsed))
            waiting = self.faults.get(what)
            return what, waiting.popleft() if waiting else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    proxy: MetricsProxy
    upstream: tuple[str, int]

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        what, fault = self.proxy.decide(self.path, body)
        if fault == "reset":
            return self._reset()
        if isinstance(fault, int):
            text = json.dumps({"data": None, "error": {"message": "said the proxy", "details": "code=x"}})
            return self._reply(fault, [("Retry-After", "1")], text.encode())
        status, headers, content = self._forward(body)
        if fault == "lose_reply":
            return self._reset()
        is_document = "application/json" in dict(headers).get("content-type", "")
        if self.proxy.change is not None and status == 200 and is_document:
            content = json.dumps(self.proxy.change(what, json.loads(content))).encode()
        return self._reply(status, headers, content)

    do_GET = do_POST = do_PATCH = answer  # noqa: N815  (http.server looks for these)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.upstream, timeout=30)
        kept = {"authorization", "accept", "content-type", "x-syvain-client", "x-syvain-version"}
        headers = {name: value for name, value in self.headers.items() if name.lower() in kept}
        connection.request(self.command, self.path, body or None, headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply.status, reply.getheaders(), content

    def _reply(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Say nothing: failing is the job."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that went away, or a server that is down, is what was asked for."""


@contextmanager
def running_metrics_proxy(url: str) -> Iterator[MetricsProxy]:
    """A proxy on a free loopback port in front of the server at `url`."""
    where = urlsplit(url)
    proxy = MetricsProxy()
    handler = type("Handler", (_Handler,), {"upstream": (where.hostname, where.port), "proxy": proxy})
    server = _Server(("127.0.0.1", 0), handler)
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
