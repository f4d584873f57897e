"""`Ahead`: the next batch is read and encoded while Metrics answers the last one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.events.syvain.wire import Line, decode_line, messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Ahead", "Batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines as they are sent to one experiment. Whoever sends takes from `lines` what is settled."""

    position: int
    lines: list[Line]
    ids: Sequence[str]
    messages: Sequence[bytes]
    experiment_id: str
    with_time: bool

    @classmethod
    def of(cls, position: int, raw: Sequence[bytes], experiment_id: str, *, with_time: bool) -> Batch:
        """Decode and encode lines of the spool that begin at `position`."""
        lines = [decode_line(line) for line in raw]
        ids = [line.message_id for line in lines]
        return cls(
            position,
            lines,
            ids,
            messages(lines, experiment_id, with_time=with_time),
            experiment_id,
            with_time,
        )


class Ahead:
    """Makes one batch at a time, in a thread of its own that begins with the first."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._next: Future[Batch] | None = None

    def begin(self, make: Callable[[], Batch]) -> None:
        """Make the next batch, unless one is made or being made already."""
        if self._next is None:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="events to Metrics, ahead")
            self._next = self._executor.submit(make)

    def take(self, position: int) -> Batch | None:
        """Return the batch that was made, if it begins at `position`; wait for one that is being made."""
        if self._next is None:
            return None
        made, self._next = self._next, None
        batch = made.result()
        return batch if batch.position == position else None

    def close(self) -> None:
        """Let the thread end."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
