"""The pages under /dashboard: the list of experiments, and one page with two tabs for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from infra.server.api.context import require, sign_in_secret, store_of
from infra.server.refusals import Refused
from infra.server.web import views
from infra.server.web.render import render
from infra.server.web.sign_in import form_token, to_sign_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from infra.server.api.context import Principal

    View = Callable[[Connection, int, int], dict[str, Any]]

__all__ = ["router"]

router = APIRouter()


@router.get("/")
async def front() -> Response:
    """The dashboard, which sees to it who asks."""
    return RedirectResponse("/dashboard", 307)


@router.get("/app/experiments/{experiment_id}")
async def printed(experiment_id: str) -> Response:
    """One experiment at the address that the newest public collector prints: its page says who may look."""
    return RedirectResponse(f"/dashboard/experiments/{quote(experiment_id, safe='')}", 307)


@router.get("/dashboard")
async def experiments(request: Request) -> Response:
    """The list of experiments, the one that changed last first."""
    return await _page(request, "experiments.html", views.experiments)


@router.get("/dashboard/experiments/{experiment_id}")
async def experiment(request: Request, experiment_id: str) -> Response:
    """One experiment, with its metrics."""
    return await _page(request, "metrics.html", _of(views.experiment, experiment_id))


@router.get("/dashboard/experiments/{experiment_id}/telemetry")
async def telemetry(request: Request, experiment_id: str) -> Response:
    """The Telemetry tab of one experiment, with its run."""
    return await _page(request, "telemetry.html", _of(views.telemetry, experiment_id))


def _of(view: Callable[[Connection, int, str, int], dict[str, Any]], experiment_id: str) -> View:
    return lambda connection, organisation_id, now_ms: view(
        connection, organisation_id, experiment_id, now_ms
    )


async def _page(request: Request, template: str, view: View) -> Response:
    """Render a view of the organisation that may be looked at; a refusal is a page too.

    Whoever we do not know is sent to sign in.
    """
    store = store_of(request)
    signed_in = None
    try:
        principal = await require(request, "read", keyless=True)
        signed_in = _signed_in(request, principal)
        organisation_id = principal.organisation.id
        shown = await store.read(lambda connection: view(connection, organisation_id, store.clock_ms()))
    except Refused as refusal:
        if refusal.status == 401 and "authorization" not in request.headers:
            return to_sign_in(request)
        return render("refused.html", {"refusal": refusal, "signed_in": signed_in}, refusal.status)
    return render(template, {**shown, "signed_in": signed_in}, 200)


def _signed_in(request: Request, principal: Principal) -> dict[str, str] | None:
    secret = sign_in_secret(request)
    if principal.person is None or secret is None:
        return None
    return {
        "name": principal.person.name,
        "organisation": principal.organisation.name,
        "form": form_token(secret),
    }
