"""The names of an organisation's secrets, and what Prefect calls the blocks that hold them."""

from __future__ import annotations

import re

from runtime.errors import Rejected

__all__ = ["block_name", "check_secret_name", "secret_name"]

PREFIX = "slugline-secret-"
NAME = re.compile(r"[A-Z][A-Z0-9_]{0,99}")


def check_secret_name(name: str) -> None:
    """Check the name of a secret, which is the variable in which a command finds it.

    Raises:
        Rejected: it is none. Only capital letters, so that two secrets never share a block.
    """
    if not NAME.fullmatch(name):
        raise Rejected(
            f"a secret's name is that of its variable, of capital letters, digits and _, got {name!r}: "
            "write it like HF_TOKEN."
        )


def block_name(name: str) -> str:
    """Return the name of the block that holds a secret: Prefect takes small letters, digits and dashes."""
    return PREFIX + name.lower().replace("_", "-")


def secret_name(block: str) -> str | None:
    """Return the secret that a block holds; None: the block is not one of ours."""
    if not block.startswith(PREFIX):
        return None
    name = block.removeprefix(PREFIX).upper().replace("-", "_")
    return name if NAME.fullmatch(name) else None
