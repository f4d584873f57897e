"""infra.local.ports: a port that cannot be had is named with who holds it and what moves it."""

import os
import socket

import pytest

from infra.local.errors import StackError
from infra.local.ports import HOST, Ports, require_free


def free_block(size: int = 12) -> int:
    """The first of `size` ports in a row that are free, with the one 10,008 above the first free too."""
    for start in range(21_000, 31_000, 16):
        try:
            require_free(Ports(prefect=start + 10, metrics=start + 11, s3=start))
        except StackError:
            continue
        return start
    raise AssertionError("no free ports")


def test_free_ports_pass():
    start = free_block()
    require_free(Ports(prefect=start + 10, metrics=start + 11, s3=start))


@pytest.mark.parametrize(
    ("offset", "purpose", "option"),
    [
        (10, "Prefect", "--port-prefect"),
        (11, "Metrics", "--port-metrics"),
        (0, "S3", "--port-s3"),
        (7, "SeaweedFS volume gRPC", "--port-s3"),
        (10_008, "SeaweedFS admin gRPC", "--port-s3"),
    ],
)
@pytest.mark.parametrize("address", [HOST, "0.0.0.0"])
def test_a_port_in_use_is_named_with_its_holder_and_its_option(offset, purpose, option, address):
    start = free_block()
    with socket.socket() as holder:
        holder.bind((address, start + offset))
        holder.listen()
        with pytest.raises(StackError) as error:
            require_free(Ports(prefect=start + 10, metrics=start + 11, s3=start))
    text = str(error.value)
    assert text.startswith(f"port {start + offset} ({purpose}) is in use by pid {os.getpid()} (")
    assert text.endswith(f"): stop that process, or choose another port with {option}")
    assert "\n" not in text


def test_one_port_for_two_things_is_refused():
    with pytest.raises(
        StackError, match="port 4222 is asked for twice, for Metrics and for SeaweedFS master"
    ):
        require_free(Ports(metrics=4222))


@pytest.mark.parametrize("ports", [Ports(prefect=0), Ports(metrics=65_536), Ports(s3=-1), Ports(s3=60_000)])
def test_a_number_that_is_no_port_is_refused(ports):
    with pytest.raises(StackError, match="is not within 1 to 65535: choose another"):
        require_free(ports)


def test_no_two_needed_ports_are_the_same_by_default():
    numbers = [port.number for port in Ports().needed()]
    assert len(set(numbers)) == len(numbers) == 12
