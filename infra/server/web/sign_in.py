"""/sign-in and /sign-out: forms, which carry a token besides the browser's word on where they come from."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from infra.server.api.auth import StrangersRoute, forget_sign_in, keep_sign_in
from infra.server.api.body import read_body
from infra.server.api.context import cookie_name, refuse_other_sites, sign_in_secret, store_of
from infra.server.api.passwords import passwords_of
from infra.server.refusals import Refused
from infra.server.store import sign_in
from infra.server.store.access import hash_secret
from infra.server.web.render import render

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["form_token", "router", "to_sign_in"]

router = APIRouter(route_class=StrangersRoute)
_HOME = "/dashboard"
_MAX_NEXT = 1000


@router.get("/sign-in")
async def show(request: Request) -> Response:
    """The form."""
    return _form(request, _local(request.query_params.get("next", "")))


@router.post("/sign-in")
async def submit(request: Request) -> Response:
    """Sign in and go on to where one was going; the form again, with the reason, when that is refused."""
    fields = _fields(await read_body(request))
    to = _local(fields.get("next", ""))
    try:
        _check_form(request, fields, request.cookies.get(_form_cookie(request)))
        secret = await passwords_of(request).sign_in(
            request, fields.get("email", "")[:254], fields.get("password", "")
        )
    except Refused as refusal:
        return _form(request, to, refusal)
    response = RedirectResponse(to, 303)
    keep_sign_in(request, response, secret)
    # Browsers let nobody but a secure answer touch a cookie of this prefix.
    response.delete_cookie(_form_cookie(request), path="/", secure=request.url.scheme == "https")
    return response


@router.post("/sign-out")
async def leave(request: Request) -> Response:
    """Sign out and show the form."""
    fields, secret = _fields(await read_body(request)), sign_in_secret(request)
    if secret is not None:
        _check_form(request, fields, secret)
        await store_of(request).write(lambda connection: sign_in.end(connection, secret))
    response = RedirectResponse("/sign-in", 303)
    forget_sign_in(request, response)
    return response


def to_sign_in(request: Request) -> Response:
    """Send a browser to the form, and from there back."""
    to = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    where = request.url_for("show").include_query_params(next=to)
    return RedirectResponse(f"{where.path}?{where.query}", 303)


def form_token(secret: str) -> str:
    """Return what a form carries to show that it is ours: nobody can make it who cannot read the cookie."""
    return hash_secret(f"form {secret}").hex()


def _form(request: Request, to: str, refusal: Refused | None = None) -> Response:
    secret = request.cookies.get(_form_cookie(request)) or secrets.token_urlsafe(32)
    shown = {"refusal": refusal, "next": to, "form": form_token(secret), "signed_in": None}
    response = render("sign_in.html", shown, 200 if refusal is None else refusal.status)
    if refusal is not None and refusal.retry_after_s is not None:
        response.headers["Retry-After"] = str(refusal.retry_after_s)
    response.set_cookie(
        _form_cookie(request),
        secret,
        max_age=3600,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def _form_cookie(request: Request) -> str:
    return f"{cookie_name(request)}-form"


def _check_form(request: Request, fields: Mapping[str, str], secret: str | None) -> None:
    refuse_other_sites(request)
    told = fields.get("form", "").encode("utf-8", "surrogateescape")
    if secret is None or not hmac.compare_digest(told, form_token(secret).encode()):
        raise Refused("forbidden", "the form was not ours or is too old: try again")


def _fields(body: bytes) -> dict[str, str]:
    try:
        return {name: values[0] for name, values in parse_qs(body.decode(), max_num_fields=16).items()}
    except ValueError as error:
        raise Refused("malformed_request", "the body is no form") from error


def _local(to: str) -> str:
    """Return an address of ours to go on to: of anything that could lead elsewhere, the first page."""
    parts = urlsplit(to) if to.isascii() and to.isprintable() and len(to) <= _MAX_NEXT else None
    if parts is None or parts.scheme or parts.netloc or "\\" in to:
        return _HOME
    return to if to.startswith("/") and not to.startswith("//") else _HOME
