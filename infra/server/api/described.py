"""What a route says of itself: the types that it decodes and answers with, and what it refuses.

The API description is made of it, so that what is described is what is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import msgspec

__all__ = ["Operation", "describe", "operation_of"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route. Types are those that msgspec has a schema for, or a schema itself as a dict.

    `data` is what stands under that name in the envelope of a reply; `reply` is the whole of a reply without
    an envelope, of the media type `media`; `other_media` are those it may have instead. `codes` are the
    refusals beyond those of every route. `repeatable` says that an idempotency-key counts here. `examples`
    are bodies that the route accepts, by a name each.
    """

    data: Any = None
    reply: Any = None
    media: str = "application/json"
    body: Any = None
    query: type[msgspec.Struct] | None = None
    other_media: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    repeatable: bool = False
    examples: dict[str, Any] | None = None


def describe(operation: Operation) -> Callable[[F], F]:
    """Describe a route: its summary and description are the endpoint's docstring."""

    def marked(endpoint: F) -> F:
        endpoint.operation = operation  # type: ignore[attr-defined]  # read by operation_of
        return endpoint

    return marked


def operation_of(endpoint: Callable[..., Any]) -> Operation | None:
    """Return what an endpoint says of itself; None when it says nothing."""
    return getattr(endpoint, "operation", None)
