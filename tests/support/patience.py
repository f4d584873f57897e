"""How long a test's own request waits for its answer, and that no example of hypothesis has a time limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["requests_are_patient"]


@pytest.fixture(scope="session", autouse=True)
def requests_are_patient() -> Iterator[None]:
    """Where no time is named httpx waits five seconds, which a server on a busy machine may well take."""
    with pytest.MonkeyPatch.context() as patch:
        for part in ("connect", "read", "write", "pool"):
            patch.setattr(f"httpx._config.DEFAULT_TIMEOUT_CONFIG.{part}", 60.0)
        yield


def pytest_configure() -> None:
    """Before a test is read: an example of more than 0.2 s, or ten that take a second, would be a failure."""
    slow = HealthCheck.too_slow
    settings.register_profile("busy machine", settings(), deadline=None, suppress_health_check=[slow])
    settings.load_profile("busy machine")
