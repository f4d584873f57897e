"""Another user than root, who could read and write anything."""

from __future__ import annotations

import os
import pwd
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["unprivileged"]


@contextmanager
def unprivileged() -> Iterator[None]:
    """Be nobody where this process is root's."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
