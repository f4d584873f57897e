"""The application: its routes, and what stands around all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from infra.server.api import chart, errors, experiment_events, org_events, series_stream, status
from infra.server.charts import PointCache
from infra.server.web import pages

if TYPE_CHECKING:
    from infra.server.store.store import Store

__all__ = ["create_app"]


def create_app(store: Store, *, keyless: bool) -> FastAPI:
    """Return the application over an open store, which the caller closes.

    `keyless` says whether people may look at it without a key: only where nobody else can reach it.
    """
    app = FastAPI(title="Slugline Metrics", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.store = store
    app.state.keyless = keyless
    app.state.point_cache = PointCache()
    errors.install(app)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    for module in (status, org_events, experiment_events, series_stream, chart, pages):
        app.include_router(module.router)
    app.mount("/dashboard/static", StaticFiles(packages=[("infra.server.web", "static")]))
    return app
