"""The organisation's secrets, as a flow process reads them from Prefect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.secret_names import PREFIX, secret_name

if TYPE_CHECKING:
    from flows.server import Server

__all__ = ["read_secrets"]


def read_secrets(server: Server) -> dict[str, str]:
    """Return every secret by its name.

    Raises:
        Unavailable: the Prefect server cannot be reached.
    """
    found: dict[str, str] = {}
    for block in server.blocks(like=PREFIX, type_slug="secret"):
        name, value = secret_name(block.name or ""), _value(block.data)
        if name is not None and value is not None:
            found[name] = value
    return found


def _value(data: dict[str, Any]) -> str | None:
    value = data.get("value")
    return value if isinstance(value, str) else None
