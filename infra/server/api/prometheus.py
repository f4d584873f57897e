"""GET /metrics: what whoever runs the server wants to know, as Prometheus reads it.

No name of anything that people store is in it: no slug, no path, no id, no key.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from infra.server.api.context import GuardedRoute, needs
from infra.server.api.described import Operation, describe
from infra.server.store import sql

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from infra.server.refusals import Refused
    from infra.server.store.store import Store

__all__ = ["Measured", "Measures", "measures_of", "router"]

router = APIRouter(route_class=GuardedRoute, tags=["health"])
_MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_UNITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_KEPT_S = 15.0
"""For how long the sizes of the store are kept: counting them reads every series."""


class Measures:
    """Counts and times of one application, and of the store below it. Lives as long as the application."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = _counter(registry, "requests", "Requests answered", "method", "route", "status")
        self._seconds = _histogram(
            registry,
            "request_seconds",
            "From a request to the end of its answer",
            _SECONDS,
            "method",
            "route",
        )
        self._events = _counter(
            registry, "events", "Events answered: applied, or the code of the refusal", "outcome"
        )
        self._commit_seconds = _histogram(
            registry, "commit_seconds", "One commit, its flush included", _SECONDS
        )
        self._commit_units = _histogram(registry, "commit_units", "Requests that shared one commit", _UNITS)
        self._failed = _counter(registry, "commits_failed", "Commits of which nothing was applied")
        self._points_added = _gauge(registry, "points_added", "Points stored since the start")
        self._repeated = _gauge(registry, "points_repeated", "Points that came again since the start")
        self._partitions = _gauge(
            registry, "partitions_refused", "Points refused for one partition too many, since the start"
        )
        self._depth = _gauge(registry, "queue_depth", "Requests that wait for the writer")
        self._points = _gauge(registry, "points", "Points in the database")
        self._experiments = _gauge(registry, "experiments", "Experiments in the database")
        self._bytes = _gauge(registry, "database_bytes", "Bytes that the database takes on disk")
        self._sized_s = 0.0
        store.watch(self.committed)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request by the template of its route."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def events(self, count: int, refused: Iterable[Refused]) -> None:
        """Count the events of a batch of `count`, of which some were refused."""
        num_refused = 0
        for refusal in refused:
            num_refused += 1
            self._events.labels(refusal.code).inc()
        if count > num_refused:
            self._events.labels("applied").inc(count - num_refused)

    def committed(self, seconds: float, units: int, *, failed: bool) -> None:
        """Count a commit; called in the writer's thread."""
        self._commit_seconds.observe(seconds)
        self._commit_units.observe(units)
        if failed:
            self._failed.inc()

    async def text(self) -> bytes:
        """Return everything as Prometheus reads it.

        Raises:
            StoreUnavailable: The database cannot be read now.
        """
        counters = self._store.counters
        self._points_added.set(counters.points)
        self._repeated.set(counters.repeated)
        self._partitions.set(counters.partitions_refused)
        self._depth.set(self._store.queue_depth)
        if time.monotonic() - self._sized_s >= _KEPT_S:
            points, experiments, size = await self._store.read(self._sizes)
            self._points.set(points)
            self._experiments.set(experiments)
            self._bytes.set(size)
            self._sized_s = time.monotonic()
        return generate_latest(self.registry)

    def _sizes(self, connection: Connection) -> tuple[int, int, int]:
        points = sql.scalar(connection, "SELECT sum(num_points) FROM series") or 0
        experiments = sql.scalar(connection, "SELECT count(*) FROM experiments WHERE deleted_ms IS NULL")
        return int(points), int(experiments), self._store.database.size_bytes(connection)


class Measured:
    """Around an application: counts and times its requests."""

    def __init__(self, app: ASGIApp, *, measures: Measures) -> None:
        self._app = app
        self._measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started_s = 500, time.perf_counter()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - started_s
            self._measures.request(scope["method"], _template(scope), status, seconds)


@router.get("/metrics")
@needs("read", keyless=True)
@describe(Operation(reply={"type": "string"}, media="text/plain"))
async def metrics(request: Request) -> Response:
    """Return counts, times and sizes of this server process for Prometheus."""
    return Response(await measures_of(request).text(), headers={"Content-Type": _MEDIA})


def measures_of(request: Request) -> Measures:
    """Return the application's measures."""
    found: Measures = request.app.state.measures
    return found


def _template(scope: Scope) -> str:
    """Return the path of the route that answered, with its parameters' names; `none` where there was none."""
    route: Any = scope.get("route")
    path = getattr(route, "path", None)
    return path if isinstance(path, str) else "none"


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(name, text, labels, namespace="slugline_metrics", registry=registry)


def _gauge(registry: CollectorRegistry, name: str, text: str) -> Gauge:
    return Gauge(name, text, namespace="slugline_metrics", registry=registry)


def _histogram(
    registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...], *labels: str
) -> Histogram:
    return Histogram(name, text, labels, namespace="slugline_metrics", registry=registry, buckets=buckets)
