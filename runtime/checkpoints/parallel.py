"""A handful of threads over a list of pieces; they never keep a process from ending."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["each"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(
    function: Callable[[Item], Result], items: Sequence[Item], *, workers: int, name: str
) -> list[Result]:
    """Call `function` on every item, `workers` at a time; return the results in order.

    The first error stops what has not begun and is raised once the others have ended. The threads are
    daemons, which those of a `ThreadPoolExecutor` are not: an upload that hangs must not hold up an exit.
    """
    results: list[Any] = [None] * len(items)
    errors: list[BaseException] = []
    left = iter(range(len(items)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index = None if errors else next(left, None)
            if index is None:
                return
            try:
                results[index] = function(items[index])
            except BaseException as error:  # noqa: BLE001  (raised by the caller's thread below)
                errors.append(error)
                return

    threads = [
        threading.Thread(target=work, name=f"{name}-{number}", daemon=True)
        for number in range(min(workers, len(items)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
