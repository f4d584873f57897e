"""Drawing the next batches of a loader in processes of their own, while the current one is trained on."""

from __future__ import annotations

import ctypes
import errno
import io
import multiprocessing
import os
import pickle
import signal
import traceback
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import torch

from runtime.errors import Rejected, said_by
from runtime.std.draws import seeded

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

    from runtime.experiment.model import Batch, Loader

__all__ = ["Workers"]

PR_SET_PDEATHSIG = 1
QUIET = {signal.SIGINT, signal.SIGTERM}


class Workers:
    """A loader that draws the batches of another one ahead, in `processes` processes; 0 draws them here.

    Batch *i* is the same for every number of processes. They start with the first batch, ignore SIGINT and
    SIGTERM (a signal to the whole process group must not take the batches from the step that is being
    finished), end with the thread that asked for the first batch, and touch no generator of this process.
    A jump to another index, as a resume makes one, waits for the batches that were drawn ahead.
    """

    def __init__(self, loader: Loader, *, processes: int, ahead: int = 2) -> None:
        if processes < 0 or ahead < 1:
            raise Rejected(f"Workers takes processes >= 0 and ahead >= 1, got {processes} and {ahead}")
        self.loader = loader
        self.processes = processes
        self.ahead = ahead
        self._pool: list[_Worker] = []
        self._next = 0

    def batch(self, index: int) -> Batch:
        """Return batch `index` of the loader.

        Raises:
            RuntimeError: the loader raised in its process, whose traceback is the error's note, or it died.
        """
        if self.processes == 0:
            return _draw(self.loader, index)
        if not self._pool:
            self._start()
        if index != self._next:
            for worker in self._pool:
                worker.drain()
        self._next = index + 1
        for upcoming in range(index, index + self.processes * self.ahead):
            self._pool[upcoming % self.processes].request(upcoming)
        return self._pool[index % self.processes].receive()

    def _start(self) -> None:
        self._pool = [_start_worker(self.loader) for _ in range(self.processes)]
        # Runs before multiprocessing's own end, which would wait for ever for who ignores its SIGTERM.
        Finalize(self, _kill, args=(self._pool,), exitpriority=100)


@dataclass(slots=True)
class _Worker:
    """This side of a process. `requested` was asked for and not yet received; answers come in its order."""

    process: ForkProcess
    connection: Connection
    requested: list[int] = field(default_factory=list)

    def request(self, index: int) -> None:
        if self.requested and self.requested[-1] >= index:
            return
        try:
            self.connection.send(index)
        except OSError as error:
            raise self._died() from error
        self.requested.append(index)

    def receive(self) -> Batch:
        index = self.requested.pop(0)
        batch, failure = self._next_answer()
        if failure is not None:
            raise failure.raised_here(index)
        return batch  # type: ignore[no-any-return] # pickle has no types

    def drain(self) -> None:
        while self.requested:
            self.requested.pop()
            self._next_answer()

    def _next_answer(self) -> Any:
        try:
            return _receive(self.connection)
        except (EOFError, OSError) as error:
            raise self._died() from error

    def _died(self) -> RuntimeError:
        self.process.join(timeout=1)
        return RuntimeError(
            f"loader worker {self.process.pid} ended with exit code {self.process.exitcode}; -9 is often the "
            "kernel's answer to too little memory, which fewer processes need less of"
        )


def _start_worker(loader: Loader) -> _Worker:
    context = multiprocessing.get_context("fork")  # a spawned process could not import the experiment file
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(loader, theirs, os.getpid()), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, QUIET)  # until the child ignores them
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Worker(process, ours)


def _serve(loader: Loader, connection: Connection, parent: int) -> None:
    for number in QUIET:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, QUIET)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)  # the threads that torch had started were not forked with it
    while os.getppid() == parent:
        index = connection.recv()
        _send(connection, _attempt(loader, index))


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a loader raised in a worker. `missing` is the file that it did not find; unset for all else."""

    text: str
    traceback: str
    missing: Any

    def raised_here(self, index: int) -> Exception:
        """Return the error for the process that asked: a file that is missing stays one."""
        text = f"a loader worker failed at batch {index}: {self.text}"
        missing = self.missing
        error = RuntimeError(text) if missing is None else FileNotFoundError(errno.ENOENT, text, missing)
        error.add_note(self.traceback)
        return error


def _attempt(loader: Loader, index: int) -> tuple[Any, _Failure | None]:
    try:
        return _draw(loader, index), None
    except Exception as error:  # noqa: BLE001 - raised again in the parent, with its traceback
        missing = error.filename if isinstance(error, FileNotFoundError) else None
        return None, _Failure(said_by(error), traceback.format_exc(), missing)


class _Pickler(pickle.Pickler):
    """Pickles tensors as the bytes that they are; torch's own way took ten times as long."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.numel() == 0:
            return NotImplemented
        data: Any = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _rebuild, (pickle.PickleBuffer(data), value.dtype, value.shape)


def _rebuild(data: Any, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _send(connection: Connection, value: Any) -> None:
    """Send `value`: its pickle, the sizes of its tensors, and the bytes of each."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = io.BytesIO()
    _Pickler(pickled, protocol=5, buffer_callback=buffers.append).dump(value)
    connection.send_bytes(pickled.getbuffer())
    connection.send([buffer.raw().nbytes for buffer in buffers])
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


def _receive(connection: Connection) -> Any:
    pickled = connection.recv_bytes()
    buffers = [bytearray(size_bytes) for size_bytes in connection.recv()]
    for buffer in buffers:
        connection.recv_bytes_into(buffer)
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301 - our own child wrote it


def _draw(loader: Loader, index: int) -> Batch:
    with seeded(index):
        return loader.batch(index)


def _kill(pool: list[_Worker]) -> None:
    for worker in pool:
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
