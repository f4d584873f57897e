"""Waiting for a fact instead of sleeping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def wait_until(
    fact: Callable[[], T], *, within_s: float, what: str | Callable[[], str] = "", poll_s: float = 0.1
) -> T:
    """Return the first truthy value of `fact`; fail with `what` when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (value := fact()):
        if time.monotonic() >= deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {within_s} s: {told}")
        time.sleep(poll_s)
    return value
