"""The pages under /dashboard: the list of experiments, and one page for each."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from infra.server.api.context import require, store_of
from infra.server.refusals import Refused
from infra.server.web import views

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

__all__ = ["router"]

router = APIRouter()
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@router.get("/dashboard")
async def experiments(request: Request) -> Response:
    """The list of experiments, the one that changed last first."""
    return await _page(request, "experiments.html", views.experiments)


@router.get("/dashboard/experiments/{experiment_id}")
async def experiment(request: Request, experiment_id: str) -> Response:
    """One experiment."""
    return await _page(
        request,
        "experiment.html",
        lambda connection, organisation_id, now_ms: views.experiment(
            connection, organisation_id, experiment_id, now_ms
        ),
    )


async def _page(
    request: Request, template: str, view: Callable[[Connection, int, int], dict[str, Any]]
) -> Response:
    """Render a view of the organisation that may be looked at; a refusal is a page too."""
    store = store_of(request)
    try:
        organisation = (await require(request, "read", keyless=True)).organisation
        shown = await store.read(lambda connection: view(connection, organisation.id, store.clock_ms()))
    except Refused as refusal:
        return _render("refused.html", {"refusal": refusal}, refusal.status)
    return _render(template, shown, 200)


def _render(template: str, shown: dict[str, Any], status: int) -> Response:
    text = _environment().get_template(template).render(shown)
    return Response(text, status, _HEADERS, "text/html; charset=utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("infra.server.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = views.number
    return environment
