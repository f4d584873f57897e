"""Ports of the loopback address for servers that start later, or again: nobody takes one meanwhile.

The kernel gives none of these to whoever names no port, a client or a listener on port 0. Of the processes
that ask here, one has a port for as long as it lives: a name in Linux's abstract namespace says so.
"""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["claim", "free_port", "free_ports"]

_RANGE = range(10_000, 22_000)
"""Below those that the kernel chooses from, 32,768 and up unless somebody has changed that."""

_claims: list[int] = []
"""The descriptors that hold our names; they are closed with the process, and not inherited."""


def free_port() -> int:
    """Return a port on which nobody listens, for this process and what it starts alone."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return that many of them, all different."""
    chance = random.SystemRandom()  # no test's seed makes two processes ask for the same
    found: list[int] = []
    while len(found) < count:
        port = chance.choice(_RANGE)
        if claim([port]):
            found.append(port)
    return found


def claim(ports: Sequence[int]) -> bool:
    """Take just these ports; False: somebody listens on one, or another process, or this, has it already."""
    held: list[socket.socket] = []
    try:
        for port in ports:
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].bind(f"\0slugline-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
    except OSError:
        for one in held:
            one.close()
        return False
    _claims.extend(one.detach() for one in held)
    return True
