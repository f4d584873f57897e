"""The texts that people give things: what a name, an address and a password may be."""

from __future__ import annotations

from typing import Annotated

import msgspec

from infra.server.store import sign_in

__all__ = ["Email", "Name", "Password"]

_END = r"$(?!\n)"
"""The end of a text, for Python as for JavaScript: Python's `$` also stands before a last line feed."""
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+" + _END)]
Email = Annotated[
    str,
    msgspec.Meta(min_length=3, max_length=254, pattern=r"^[^@\x00-\x20\x7f]+@[^@\x00-\x20\x7f]+" + _END),
]
Password = Annotated[str, msgspec.Meta(min_length=sign_in.MIN_PASSWORD_LENGTH, max_length=256)]
