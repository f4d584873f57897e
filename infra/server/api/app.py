"""The application: its routes, and what stands around all of them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from infra.server.api import (
    auth,
    chart,
    errors,
    experiment_events,
    health,
    keys,
    members,
    openapi,
    org_events,
    prometheus,
    series_stream,
    views,
)
from infra.server.api.body import BodyBudget
from infra.server.api.news import News
from infra.server.api.passwords import Passwords
from infra.server.api.remover import Remover
from infra.server.api.streaming import Turns
from infra.server.api.uses import Uses
from infra.server.api.v1 import ROUTERS
from infra.server.api.warming import warm_up
from infra.server.patience import Patience
from infra.server.web import pages, sign_in
from infra.server.web.headers import SafeHeaders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from infra.server.store.store import Store

__all__ = ["create_app"]


def create_app(store: Store, *, keyless: bool) -> FastAPI:
    """Return the application over an open store, which the caller closes.

    `keyless` says whether people may look at it without a key: only where nobody else can reach it.
    """
    uses, remover = Uses(store), Remover(store)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await warm_up(app, store)
        async with uses.kept(), remover.kept():
            yield

    app = FastAPI(
        title="Slugline Metrics", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.store = store
    app.state.keyless = keyless
    app.state.body_budget = BodyBudget()
    app.state.passwords = Passwords(store)
    app.state.running = set()  # requests under an idempotency-key
    app.state.remover = remover
    app.state.measures = measures = prometheus.Measures(store)
    app.state.readiness = health.Readiness(store)
    app.state.uses = uses
    app.state.streams = Turns()
    app.state.drawings = Turns(2)
    app.state.news = News()
    errors.install(app)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    app.add_middleware(SafeHeaders)
    app.add_middleware(Patience)
    app.add_middleware(prometheus.Measured, measures=measures)  # the last is the outermost
    for module in (
        health,
        auth,
        org_events,
        experiment_events,
        series_stream,
        keys,
        members,
        views,
        chart,
        prometheus,
    ):
        app.include_router(module.router)
    for router in ROUTERS:
        app.include_router(router)
    for open_router in (auth.open_router, pages.router, sign_in.router):
        app.include_router(open_router)
    openapi.install(app)
    app.mount("/dashboard/static", StaticFiles(packages=[("infra.server.web", "static")]))
    return app
