"""Scripted faults at the operations of a checkpoint store: for stores in a test, and for child processes.

A child process is started as `python -m tests.support.faults <sexpgpu's arguments>` with the plan in the
environment (`FaultPlan.env`): it is `sexpgpu`, but for a store that does what the plan says.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from runtime.checkpoints.local import LocalStore
from runtime.checkpoints.s3 import S3Store
from runtime.checkpoints.store import Conflict, Missing
from runtime.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from runtime.checkpoints.store import Object, Store

Value = TypeVar("Value")

VARIABLE = "SLUGLINE_TEST_FAULTS"

WRITES = ("put", "put_if", "delete")
READS = ("get", "read_into", "list")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """What happens at operation `at` (from 1) of those named in `operations` whose key matches `key`.

    `when`: `before` it takes effect, `after` it did, or `torn`: half-way. Torn is for a local put that half
    of the file stands under its final name, as after a power cut; for one that swaps, that half of it stands
    aside; for S3 that the connection ends within the body; for a delete that half of the keys are gone.
    `do`: `kill` (SIGKILL to this process), `stop` (SIGSTOP), or `raise` (`Unavailable`).
    `at=0` never happens: such a plan only logs. `times` is how many operations from there on are hit; `log`
    is a file that gets a line per operation.
    """

    at: int = 1
    times: int = 1
    when: Literal["before", "after", "torn"] = "before"
    do: Literal["kill", "stop", "raise"] = "kill"
    operations: tuple[str, ...] = WRITES
    key: str = ".*"
    log: str | None = None

    def kill_at(self, at: int, when: Literal["before", "after", "torn"] = "before") -> FaultPlan:
        return replace(self, at=at, when=when, do="kill")

    def raise_at(self, at: int, *, times: int = 1) -> FaultPlan:
        return replace(self, at=at, times=times, do="raise")

    def env(self) -> dict[str, str]:
        """The variable that carries this plan into a child process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @staticmethod
    def of_env() -> FaultPlan | None:
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        plan = json.loads(text)
        return FaultPlan(**plan | {"operations": tuple(plan["operations"])})


def operations_of(log: Path) -> list[str]:
    """What a run's store was asked, one `operation key` a line, in order."""
    return log.read_text().splitlines()


@dataclass(slots=True)
class FaultyStore:
    """A store that follows a plan. Counting is over all threads together."""

    inner: Store
    plan: FaultPlan
    count: int = 0
    seen: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str) -> tuple[bytes, str]:
        return self._do("get", key, lambda: self.inner.get(key))

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._do("put", key, lambda: self.inner.put(key, data), lambda: self._torn_put(key, data))

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> str:
        return self._do(
            "put_if",
            key,
            lambda: self.inner.put_if(key, data, etag=etag),
            lambda: self._torn_swap(key, data, etag),
        )

    def read_into(self, key: str, buffer: memoryview) -> None:
        self._do("read_into", key, lambda: self.inner.read_into(key, buffer))

    def list(self, prefix: str = "") -> Iterator[Object]:
        return self._do("list", prefix, lambda: iter(list(self.inner.list(prefix))))

    def delete(self, keys: Iterable[str]) -> None:
        which = list(keys)
        half = which[: len(which) // 2]
        self._do("delete", " ".join(which), lambda: self.inner.delete(which), lambda: self.inner.delete(half))

    def _do(
        self, operation: str, key: str, act: Callable[[], Value], half: Callable[[], None] | None = None
    ) -> Value:
        if not self._is_hit(operation, key):
            return act()
        done = None
        if self.plan.when == "after":
            with suppress(Conflict, Missing):  # that is an effect too
                done = act()
        if self.plan.when == "torn" and half is not None:
            half()
        if self.plan.do == "raise":
            raise Unavailable(f"{self.url}: the fault plan says no to {operation} {key}")
        os.kill(os.getpid(), signal.SIGKILL if self.plan.do == "kill" else signal.SIGSTOP)
        return act() if done is None else done

    def _is_hit(self, operation: str, key: str) -> bool:
        with self.lock:
            self.seen.append(f"{operation} {key}")
            if self.plan.log:
                with Path(self.plan.log).open("a") as log:
                    log.write(f"{operation} {key}\n")
            if operation not in self.plan.operations or not re.search(self.plan.key, key):
                return False
            self.count += 1
            return self.plan.at <= self.count < self.plan.at + self.plan.times

    def _torn_put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        if isinstance(self.inner, LocalStore):
            path = self.inner.root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(memoryview(data)[: len(data) // 2])
        elif isinstance(self.inner, S3Store):
            _put_half(self.inner, key, bytes(data), {})

    def _torn_swap(self, key: str, data: bytes, etag: str | None) -> None:
        if isinstance(self.inner, LocalStore):
            self.inner._write_aside(data[: len(data) // 2])
        elif isinstance(self.inner, S3Store):
            _put_half(self.inner, key, data, {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag})


def _put_half(store: S3Store, key: str, data: bytes, condition: dict[str, str]) -> None:
    """Begin a PUT and kill this process when half of its body was handed to the kernel."""

    class Body:
        at = 0

        def __len__(self) -> int:
            return len(data)

        def read(self, _size: int = -1) -> bytes:
            if self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.at = len(data) // 2
            return data[: self.at]

        def seek(self, offset: int, _whence: int = 0) -> int:
            self.at = offset
            return offset

        def tell(self) -> int:
            return 0

    store._bulk.put_object(Bucket=store._bucket, Key=store._prefix + key, Body=Body(), **condition)


def install(plan: FaultPlan) -> None:
    """Make every location that this process opens from now on follow `plan`."""
    from runtime.checkpoints import location

    open_store = location.open_store
    # One store for the process: operations are counted through.
    location.open_store = lambda spec, env: FaultyStore(open_store(spec, env), plan)


def main() -> None:
    """Be `sexpgpu`, with the faults that the environment asks for."""
    plan = FaultPlan.of_env()
    if plan is not None:
        install(plan)
    from runtime.cli.main import main as sexpgpu

    sys.exit(sexpgpu())


if __name__ == "__main__":
    main()
