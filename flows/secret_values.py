"""The organisation's secrets, kept by Prefect as blocks of its type Secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.blocks.system import Secret
from pydantic import SecretStr

from flows.prefect_client import prefect_client
from flows.secret_names import PREFIX, block_name, check_secret_name, secret_name
from flows.server import connect
from runtime.errors import Rejected
from runtime.telemetry.masking import check_secret

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from flows.server import Server

__all__ = ["list_secrets", "read_secrets", "remove_secret", "require_secrets", "set_secret"]


def read_secrets(server: Server) -> dict[str, str]:
    """Return every secret by its name.

    Raises:
        Unavailable: the Prefect server cannot be reached.
    """
    found: dict[str, str] = {}
    for block in server.blocks(like=PREFIX, type_slug="secret", with_secrets=True):
        name, value = secret_name(block.name or ""), _value(block.data)
        if name is not None and value is not None:
            found[name] = value
    return found


def list_secrets() -> dict[str, datetime]:
    """Return the names of the secrets, and when each was set.

    Raises:
        Unavailable: the Prefect server cannot be reached.
    """
    with connect() as server:
        blocks = server.blocks(like=PREFIX, type_slug="secret", with_secrets=False)
    named = ((secret_name(block.name or ""), block.updated) for block in blocks)
    return {name: updated for name, updated in sorted(named, key=str) if name is not None}


def set_secret(name: str, value: str) -> None:
    """Keep a secret; an older value is replaced.

    Raises:
        Rejected: its name or value is none that a secret can have.
        Unavailable: the Prefect server cannot be reached.
    """
    check_secret_name(name)
    check_secret(name, value)
    with prefect_client():  # for its errors in our words
        Secret(value=SecretStr(value)).save(block_name(name), overwrite=True)


def remove_secret(name: str) -> None:
    """Forget a secret.

    Raises:
        Rejected: there is none of this name.
        Unavailable: the Prefect server cannot be reached.
    """
    check_secret_name(name)
    with connect() as server:
        blocks = server.blocks(like=PREFIX, type_slug="secret", with_secrets=False)
        found = [block for block in blocks if secret_name(block.name or "") == name]
        if not found:
            raise Rejected(f"there is no secret {name}: `div secret list` shows those that there are.")
        for block in found:
            server.delete_block(block.id)


def require_secrets(names: Sequence[str]) -> None:
    """See that there are secrets of these names.

    Raises:
        Rejected: there is none of one of them.
        Unavailable: the Prefect server cannot be reached.
    """
    kept = list_secrets() if names else {}
    for name in names:
        if name not in kept:
            raise Rejected(f"there is no secret {name}: set it with `div secret set {name}`.")


def _value(data: dict[str, Any]) -> str | None:
    value = data.get("value")
    return value if isinstance(value, str) else None
