"""The application's routes: all of them, and the methods that an address takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.routing import APIRoute

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.routing import BaseRoute

__all__ = ["methods_at", "routes_of"]


def routes_of(routes: Sequence[BaseRoute]) -> Iterator[APIRoute]:
    """Yield every route for people and programs, those of included routers too."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes_of(inner.routes)
        elif isinstance(route, APIRoute):
            yield route


def methods_at(routes: Sequence[BaseRoute], path: str) -> list[str]:
    """Return what an address takes, where each method may have a route of its own; none where nothing is."""
    found = [route for route in routes_of(routes) if route.path_regex.match(path)]
    return sorted({method for route in found for method in route.methods or ()})
