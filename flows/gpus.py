"""Which GPU is whose on this host: leases are the kernel's own locks, so that a dead holder frees them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.parameters import file_name
from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Host", "Lease", "lease"]

DEFAULT_LOCKS = "/tmp/slugline-gpus"  # noqa: S108 - one fixed place that all users of a host share
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The GPUs that this host's runs share, by the names that CUDA_VISIBLE_DEVICES takes."""

    gpus: tuple[str, ...]
    locks: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Host:
        """Read `SLUGLINE_GPUS` (pretend N), else what the worker itself may see, else what the host has.

        Raises:
            Rejected: `SLUGLINE_GPUS` is no whole number.
        """
        locks = Path(environment.get("SLUGLINE_GPU_LOCKS") or DEFAULT_LOCKS)
        pretended = environment.get("SLUGLINE_GPUS")
        if pretended:
            if not pretended.isdecimal():
                raise Rejected(f"SLUGLINE_GPUS must be a whole number of at least 0, got {pretended!r}.")
            return cls(gpus=tuple(map(str, range(int(pretended)))), locks=locks)
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return cls(gpus=tuple(name.strip() for name in visible.split(",") if name.strip()), locks=locks)
        return cls(gpus=_installed(), locks=locks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """GPUs that are ours while any of `descriptors` is open, here or in a trainer that inherited it."""

    gpus: tuple[str, ...]
    descriptors: tuple[int, ...]

    def environment(self) -> dict[str, str]:
        """Return what makes a trainer see these GPUs and no other."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@contextlib.contextmanager
def lease(
    count: int,
    host: Host,
    *,
    on_wait: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Lease]:
    """Hold `count` GPUs of `host`, waiting until they are free; `on_wait` is told once that it waits.

    One run gathers at a time, and keeps what it has gathered, so that a run of four is not starved by runs
    of one, and no two runs wait for each other.

    Raises:
        Rejected: the host has fewer.
        Unavailable: the locks cannot be opened.
    """
    if count > len(host.gpus):
        raise Rejected(
            f"gpus must be at most {len(host.gpus)}, what this host has, got {count}: ask for fewer."
        )
    if count == 0:
        yield Lease(gpus=(), descriptors=())
        return
    _make_shared(host.locks)
    with contextlib.ExitStack() as held:
        patience = _Patience(f"waiting for {count} free GPU(s) of {len(host.gpus)}", on_wait, sleep)
        with contextlib.ExitStack() as queue:
            while (place := _lock(host.locks / "queue.lock")) is None:
                patience.wait()
            queue.callback(os.close, place)
            ours = _gather(count, host, held, patience)
        yield Lease(gpus=tuple(ours), descriptors=tuple(ours.values()))


@dataclass(slots=True)
class _Patience:
    text: str
    on_wait: Callable[[str], None]
    sleep: Callable[[float], None]
    said: bool = False

    def wait(self) -> None:
        if not self.said:
            self.on_wait(self.text)
            self.said = True
        self.sleep(POLL_S)


def _gather(count: int, host: Host, held: contextlib.ExitStack, patience: _Patience) -> dict[str, int]:
    ours: dict[str, int] = {}
    while True:
        for gpu in host.gpus:
            if gpu in ours or len(ours) == count:
                continue
            descriptor = _lock(host.locks / f"{file_name(gpu)}.lock")
            if descriptor is not None:
                held.callback(os.close, descriptor)
                ours[gpu] = descriptor
        if len(ours) == count:
            return ours
        patience.wait()


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock; unset: another holds it."""
    with _named(path):
        if not path.exists():
            path.touch()
            path.chmod(0o644)  # whatever the umask: others lock it, too
        # Read-only: the file may be another user's, and Linux refuses O_CREAT on those in a shared folder.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_shared(folder: Path) -> None:
    with _named(folder):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o1777)  # every user of the host locks here


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"the GPU lock {path} cannot be opened ({error.strerror}): let every user of this host read it, "
            "or set SLUGLINE_GPU_LOCKS to another folder."
        ) from error


def _installed() -> tuple[str, ...]:
    """Return the indices of the NVIDIA devices of this host, in PCI order."""
    names = (entry.name for entry in Path("/dev").iterdir())
    return tuple(sorted((m[1] for name in names if (m := re.fullmatch(r"nvidia(\d+)", name))), key=int))
