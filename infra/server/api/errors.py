"""The one JSON shape of every error that is an HTTP status."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from infra.server.api.routes import methods_at
from infra.server.refusals import Refused

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

__all__ = ["error_response", "install"]

_logger = logging.getLogger(__name__)


def error_response(refusal: Refused) -> Response:
    """Return `{"data": null, "error": {"message", "details"}}`, where details begin with the code."""
    details = [f"code={refusal.code}", *(f"{key}={value}" for key, value in refusal.details.items())]
    error: dict[str, Any] = {"message": refusal.message, "details": "; ".join(details)}
    if refusal.stored:
        error["stored"] = refusal.stored
    body = {"data": None, "error": error}
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    if refusal.status in {408, 413}:
        headers["Connection"] = "close"  # the rest of the body is not waited for
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(json.dumps(body), refusal.status, headers, "application/json")


def install(app: FastAPI) -> None:
    """Answer every failure of every route in the one shape."""

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return error_response(Refused("malformed_request", f"{where}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        refusal = Refused("not_found", "there is nothing at this address")
        if error.status_code != 404:
            refusal.code, refusal.message = "malformed_request", str(error.detail)
            refusal.status = error.status_code
        if error.status_code == 405:
            # The framework names the methods of the first route alone; of a file of the pages, none.
            methods = methods_at(request.app.routes, request.scope["path"]) or ["GET", "HEAD"]
            headers["Allow"] = ", ".join(methods)
            refusal.message = f"this address takes {headers['Allow']}, got {request.method[:20]!a}"
        response = error_response(refusal)
        response.headers.update(headers)
        return response

    @app.exception_handler(ClientDisconnect)
    async def gone(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody is there to read it

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(Refused("server_error", "the server failed; its log says why"))

    _: Any = (refused, invalid, http, gone, failed)
