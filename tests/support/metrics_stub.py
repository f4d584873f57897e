"""A Metrics server over real HTTP that does what a test scripts, and otherwise what protocol v2 says.

It remembers every request, applies a message id once, and keeps everything in memory.
"""

import gzip
import json
import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "ak_test"

_SUCCESS = {
    "start": "started",
    "done": "done",
    "error": "errored",
    "annotate": "annotated",
    "metric": "metricRecorded",
    "tokenRevoke": "tokenRevoked",
}


@dataclass
class Request:
    """One request as it arrived. `kind`: auth, open, tokenRefresh, tree, move, write or revoke."""

    kind: str
    method: str
    path: str
    headers: dict[str, str]
    events: list[dict[str, Any]]
    size_bytes: int


@dataclass
class Answer:
    """What goes back. `dropped`: the connection is closed without a word."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    dropped: bool = False


Behaviour = Callable[["MetricsStub", Request], Answer]


def http_error(status: int, message: str = "no", **headers: str) -> Behaviour:
    """Refuse the request as a whole."""
    body = json.dumps({"data": None, "error": {"message": message, "details": "code=x"}}).encode()
    return lambda _stub, _request: Answer(status, body, {k.replace("_", "-"): v for k, v in headers.items()})


def raw(status: int, body: bytes, **headers: str) -> Behaviour:
    """Answer with these bytes, nothing being applied."""
    return lambda _stub, _request: Answer(status, body, {k.replace("_", "-"): v for k, v in headers.items()})


def dropped(_stub: "MetricsStub", _request: Request) -> Answer:
    """Close the connection, nothing being applied."""
    return Answer(dropped=True)


def applied_then_dropped(stub: "MetricsStub", request: Request) -> Answer:
    """Apply everything, and let the answer get lost."""
    stub.apply(request)
    return Answer(dropped=True)


def event_errors(errors: dict[int, dict[str, Any]]) -> Behaviour:
    """Refuse the events at these places of the request, and apply the others."""

    def behave(stub: "MetricsStub", request: Request) -> Answer:
        good = [event for place, event in enumerate(request.events) if place not in errors]
        replies = iter(stub.replies(Request(**{**vars(request), "events": good})))
        answers = [
            {"correlationId": event["messageId"], "event": "syvain.v2.error", "data": errors[place]}
            if place in errors
            else next(replies)
            for place, event in enumerate(request.events)
        ]
        return Answer(body=json.dumps(answers).encode())

    return behave


def answers_changed(change: Callable[[list[Any]], Any]) -> Behaviour:
    """Apply everything, and change the list of replies."""
    return lambda stub, request: Answer(body=json.dumps(change(stub.replies(request))).encode())


def with_headers(**headers: str) -> Behaviour:
    """Do what is right, with these headers on the answer."""

    def behave(stub: "MetricsStub", request: Request) -> Answer:
        answer = stub.apply(request)
        answer.headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        return answer

    return behave


class MetricsStub:
    """The server. `script` holds, by kind of request, what the next ones get instead of the right answer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: list[Request] = []
        self.script: dict[str, deque[Behaviour]] = defaultdict(deque)
        self.experiments: dict[str, str] = {}  # slug -> id
        self.opened: list[dict[str, Any]] = []
        self.tokens: dict[str, str] = {}  # token -> experiment id
        self.token_lifetime_ms = 24 * 3600 * 1000
        self.now_ms = lambda: 1_700_000_000_000
        self.accepts_timestamp_ms = True
        self.folders: list[dict[str, Any]] = []
        self.placed: dict[str, str] = {}
        self.stored: dict[str, dict[str, Any]] = {}  # message id -> event, in order of arrival
        self.num_repeated = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def next(self, kind: str, *behaviours: Behaviour) -> None:
        """Script the next requests of a kind."""
        self.script[kind] += behaviours

    def of(self, kind: str) -> list[Request]:
        """The requests of a kind so far."""
        return [request for request in self.requests if request.kind == kind]

    @property
    def events(self) -> list[dict[str, Any]]:
        """What is stored, each message id once, in order of arrival."""
        return list(self.stored.values())

    def named(self, name: str) -> list[dict[str, Any]]:
        """The data of the stored events of a name: metric, annotate, start, done or error."""
        return [event["data"] for event in self.events if event["event"] == f"syvain.v2.experiment.{name}"]

    def answer(self, request: Request) -> Answer:
        with self.lock:
            self.requests.append(request)
            behaviours = self.script[request.kind]
            behaviour = behaviours.popleft() if behaviours else None
            return behaviour(self, request) if behaviour else self.apply(request)

    def apply(self, request: Request) -> Answer:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.kind in {"write", "revoke"}:
            experiment_id = request.path.split("/")[4]
            if self.tokens.get(token) != experiment_id:
                return http_error(401, "unknown token")(self, request)
        elif token != KEY:
            return http_error(401, "unknown key")(self, request)
        if request.kind == "auth":
            return Answer(body=b'{"data":{},"error":null}')
        return Answer(body=json.dumps(self.replies(request)).encode())

    def replies(self, request: Request) -> list[dict[str, Any]]:
        return [self._reply(event) for event in request.events]

    def _reply(self, event: dict[str, Any]) -> dict[str, Any]:
        name = event["event"].removeprefix("syvain.v2.")
        data = event["data"]
        if name == "experiment.open":
            experiment_id = self.experiments.setdefault(data["slug"], str(uuid.uuid4()))
            self.opened.append(data)
            answer = "experiment.opened", self._grant(experiment_id)
        elif name == "experiment.tokenRefresh":
            assert data["experimentToken"] in self.tokens or "old" in data["experimentToken"]
            answer = "experiment.tokenRefreshed", self._grant(data["experimentId"])
        elif name == "foldertree.read":
            answer = "foldertree.read", {"folders": self.folders, "experiments": []}
        elif name == "folderexperiment.move":
            self.placed[data["experimentId"]] = data["toFolderId"]
            answer = "folderexperiment.moved", {}
        else:
            short = name.removeprefix("experiment.")
            if short != "tokenRevoke":
                self.num_repeated += event["messageId"] in self.stored
                self.stored.setdefault(event["messageId"], event)
            answer = f"experiment.{_SUCCESS[short]}", {}
        return {
            "messageId": str(uuid.uuid4()),
            "correlationId": event["messageId"],
            "event": f"syvain.v2.{answer[0]}",
            "data": answer[1],
        }

    def _grant(self, experiment_id: str) -> dict[str, Any]:
        token = f"et_{uuid.uuid4().hex}"
        self.tokens[token] = experiment_id
        grant = {
            "experimentId": experiment_id,
            "experimentToken": token,
            "expiresAtMs": self.now_ms() + self.token_lifetime_ms,
        }
        return {**grant, "acceptsTimestampMs": True} if self.accepts_timestamp_ms else grant


def _kind(method: str, path: str, events: list[dict[str, Any]]) -> str:
    if path == "/api/v2/auth/status":
        return "auth"
    name = events[0]["event"].removeprefix("syvain.v2.")
    if path == "/api/v2/events":
        names = {"foldertree.read": "tree", "folderexperiment.move": "move"}
        return names.get(name) or str(name.removeprefix("experiment."))
    assert method == "POST"
    assert path.startswith("/api/v2/experiments/")
    return "revoke" if name == "experiment.tokenRevoke" else "write"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body leave together: apart they wait 40 ms for an acknowledgement
    stub: MetricsStub

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        size_bytes = len(body)
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        events = json.loads(body) if body else []
        kind = _kind(self.command, self.path, events)
        answer = self.stub.answer(Request(kind, self.command, self.path, headers, events, size_bytes))
        if answer.dropped:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent about clients that went away."""


@contextmanager
def serve(stub: MetricsStub | None = None, port: int = 0) -> Iterator[MetricsStub]:
    """Run a stub on a free port of the loopback interface."""
    stub = stub or MetricsStub()
    server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"stub": stub}))
    stub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
