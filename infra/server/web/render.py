"""Templates to pages."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from infra.server.web import views
from infra.server.web.headers import PAGE_POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["render"]

_HEADERS = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-store"}


def render(template: str, shown: Mapping[str, Any], status: int) -> Response:
    """Return a page. What is shown of anybody's texts is escaped."""
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
    environment.filters.update(number=views.number, size=views.size)
    return environment
