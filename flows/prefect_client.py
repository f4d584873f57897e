"""Prefect's own client and its errors in our words."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import httpx
import msgspec
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL

from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RefusedError", "page_base", "prefect_client", "translated"]


@contextlib.contextmanager
def prefect_client() -> Iterator[SyncPrefectClient]:
    """Prefect's own client for what is easier said with it; its errors are ours.

    Raises:
        Rejected: no server is set (Prefect would start one of its own, which no worker asks), or it refuses.
        Unavailable: the server cannot be reached, or is starting.
    """
    if not PREFECT_API_URL.value():
        raise Rejected(
            "PREFECT_API_URL is not set: start the local stack with `slugline up`, or name a server's /api."
        )
    with translated(), get_client(sync_client=True) as client:
        yield client


def page_base() -> str:
    """Return the address of Prefect's pages."""
    return PREFECT_UI_URL.value() or str(PREFECT_API_URL.value()).removesuffix("/api")


class RefusedError(Rejected):
    """A 4xx reply."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        path = response.request.url.path
        super().__init__(f"Prefect refuses {path} with {response.status_code}: {response.text[:500]}")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Make our errors of those that talking to Prefect raises.

    Raises:
        RefusedError: it said no.
        Rejected: what answers is no server of Prefect's.
        Unavailable: it cannot be reached, or is starting.
    """
    try:
        yield
    except PrefectHTTPStatusError as error:
        if error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise _away(f"answered {error.response.status_code}") from error
        raise RefusedError(error.response) from error
    except httpx.TransportError as error:
        raise _away(f"does not answer ({type(error).__name__})") from error
    except (json.JSONDecodeError, msgspec.MsgspecError) as error:
        raise Rejected(
            f"{PREFECT_API_URL.value()} does not answer like Prefect's API ({error}): "
            "PREFECT_API_URL must be a server's address with /api."
        ) from error


def _away(how: str) -> Unavailable:
    address = PREFECT_API_URL.value()
    return Unavailable(f"the Prefect server at {address} {how}: start it, or set PREFECT_API_URL.")
