"""The certificates of the world's authorities, which no test needs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

__all__ = ["certificates_are_read_once"]


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """Each new client of httpx would read all of them, for 0.03 s of the processor; there are thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", _context)
        yield


def _context(*, verify: Any, cert: Any, trust_env: bool) -> ssl.SSLContext:
    usual = verify is True and cert is None
    return _usual(trust_env) if usual else httpx.create_ssl_context(verify, cert, trust_env)


@cache
def _usual(trust_env: bool, /) -> ssl.SSLContext:  # noqa: FBT001  (httpx's own)
    return httpx.create_ssl_context(trust_env=trust_env)
