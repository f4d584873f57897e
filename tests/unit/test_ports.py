"""The ports of servers that tests start: each process has its own."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.ports import claim, free_port, free_ports

ROOT = Path(__file__).parents[2]


def test_a_port_is_given_once_and_to_one_process_as_long_as_that_lives():
    """Another test process's server took the port between our look at it and our server's start."""
    ours = free_ports(3)
    assert len(set(ours)) == 3
    assert not any(claim([port]) for port in ours)
    ask = f"from tests.support.ports import claim, free_port; print(free_port(), claim([{ours[0]}]))"
    asked = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True)
    theirs, claimed = asked.stdout.split()
    assert claimed == "False"
    assert claim([int(theirs)]), "that process has ended"


def test_where_one_port_is_listened_on_none_of_them_is_claimed():
    others = iter(random.SystemRandom().sample(range(31_993, 32_768), 700))  # nobody asks for these
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        taken = listener.getsockname()[1]
        free = next(port for port in others if is_free(port))
        assert not claim([free, taken])
    assert claim([free])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
