"""The ports of the stack: which they are, whether they are free, and who holds one that is not."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from infra.local.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HOST", "Port", "Ports", "require_free"]

HOST = "127.0.0.1"
"""Every service listens here and nowhere else."""

# SeaweedFS's own worker dials the admin's HTTP port + 10000 whatever -admin.port.grpc says.
WEED_ADMIN_GRPC_OFFSET = 10_000
# S3 itself, then S3 gRPC, master, master gRPC, filer, filer gRPC, volume, volume gRPC, admin.
NUM_WEED_PORTS = 9


class Port(msgspec.Struct, frozen=True):
    """One port that the stack needs: its number, what listens there, and the option that moves it."""

    number: int
    purpose: str
    option: str


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The three ports that a user chooses; the object store's inner ones follow from `s3`."""

    prefect: int = 4200
    metrics: int = 4210
    s3: int = 4220

    def needed(self) -> list[Port]:
        """Every port that must be free before the stack starts."""
        weed = (
            "S3",
            "S3 gRPC",
            "SeaweedFS master",
            "SeaweedFS master gRPC",
            "SeaweedFS filer",
            "SeaweedFS filer gRPC",
            "SeaweedFS volume",
            "SeaweedFS volume gRPC",
            "SeaweedFS admin",
        )
        return [
            Port(self.prefect, "Prefect", "--port-prefect"),
            Port(self.metrics, "Metrics", "--port-metrics"),
            *(Port(self.s3 + n, purpose, "--port-s3") for n, purpose in enumerate(weed)),
            Port(self.weed_admin_grpc, "SeaweedFS admin gRPC", "--port-s3"),
        ]

    @property
    def weed_admin_grpc(self) -> int:
        """The one inner port that does not stand beside the others."""
        return self.s3 + NUM_WEED_PORTS - 1 + WEED_ADMIN_GRPC_OFFSET


def require_free(ports: Ports) -> None:
    """Check that the ports are valid, distinct and free.

    Raises:
        StackError: naming the port, its purpose, who holds it and the option that changes it.
    """
    needed = ports.needed()
    seen: dict[int, Port] = {}
    for port in needed:
        if not 1 <= port.number <= 65_535:
            raise StackError(
                f"{port.option}: port {port.number} ({port.purpose}) is not within 1 to 65535: choose another"
            )
        if other := seen.get(port.number):
            raise StackError(
                f"port {port.number} is asked for twice, for {other.purpose} and for {port.purpose}: "
                f"choose another with {other.option} or {port.option}"
            )
        seen[port.number] = port
    for port in needed:
        _require_free(port)


def _require_free(port: Port) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers bind: a connection in TIME_WAIT is no one's, a listener is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port.number))
        except PermissionError as error:
            raise StackError(
                f"port {port.number} ({port.purpose}) may not be opened by this user: "
                f"choose one from 1024 on with {port.option}"
            ) from error
        except OSError as error:
            raise StackError(
                f"port {port.number} ({port.purpose}) is in use{_held_by(port.number)}: "
                f"stop that process, or choose another port with {port.option}"
            ) from error


def _held_by(number: int) -> str:
    """` by pid 812 (python3)`, or nothing where the system does not tell this user."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(number)}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                return f" by pid {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


def _listening_inodes(number: int) -> Iterator[str]:
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                # local_address is ADDRESS:PORT in hexadecimal; state 0A is LISTEN.
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == number:
                    yield fields[9]
