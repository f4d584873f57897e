"""`Telemetry`: appends a run's numbers to its telemetry file, from any script and any number of processes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["PATH_VARIABLE", "LineFile", "Telemetry"]

PATH_VARIABLE = "DIVERGENT_TELEMETRY_PATH"

logger = logging.getLogger(__name__)


class LineFile:
    """Appends lines to a file, every call in one write; several processes may do so at the same time.

    A line that somebody who was killed has left unfinished is ended first. Opened with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._begin = b""

    def write(self, lines: bytes) -> None:
        """Append whole lines. Raises `OSError`; what was written of them then stands for itself."""
        fd = self._open() if self._fd is None else self._fd
        data = memoryview(self._begin + lines)
        self._begin = b"\n"
        while data:  # once, but where a disk is full
            data = data[os.write(fd, data) :]
        self._begin = b""

    def close(self) -> None:
        """Let go of the file; another `write` opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # Of a pipe that nobody reads a write fails then, instead of holding training up for ever.
        fd = self._fd = os.open(self.path, flags | os.O_NONBLOCK, 0o666)
        try:
            size = os.fstat(fd).st_size
            self._begin = b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""
        except OSError:  # a pipe, which has no end to look at
            self._begin = b""
        return fd


class Telemetry:
    """Writes points to the file that `div run` reads, one line each, every line in one write.

    Several processes and threads may write to the same file. `path` unset means the one that `div run` names
    in DIVERGENT_TELEMETRY_PATH. Without that either it is off and says so once: a script runs on a laptop as
    it does under `div run`. It never fails what it reports on: what cannot be written is said once and lost.

        with Telemetry() as telemetry:
            telemetry.append({"step": 120, "loss": 0.41})
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        given = path if path is not None else os.environ.get(PATH_VARIABLE) or None
        self._file = None if given is None else LineFile(Path(given))
        self._has_failed = False
        if self._file is None:
            logger.warning(
                "telemetry is off, as %s is not set: run this under `div run`, or set it to a file of yours",
                PATH_VARIABLE,
            )

    def append(self, data: Mapping[str, Any]) -> None:
        """Write `data` as one point.

        Its numbers are kept, those of nested mappings under dotted keys. Scalars of NumPy and PyTorch are
        numbers, too. `/` in a key is written as `.`, since a key with a slash is not kept.

        Raises:
            TypeError: `data` is no mapping.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"telemetry takes a mapping of keys to numbers, got {data!r:.60}")
        if self._file is None:
            return
        try:
            line = json.dumps(_plain(data), default=_number, separators=(",", ":"))
            self._file.write(line.encode() + b"\n")
        except (OSError, TypeError, ValueError, RecursionError) as error:
            if not self._has_failed:
                logger.warning("telemetry is lost, and this is said once: %s: %s", self._file.path, error)
            self._has_failed = True

    def close(self) -> None:
        """Let go of the file; another `append` opens it again."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plain(data: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        str(key).replace("/", "."): _plain(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
    }


def _number(value: Any) -> Any:
    """Return the number that a scalar of NumPy or PyTorch is; None, which is passed over, for all else."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        number = value.item()
        return number if isinstance(number, int | float) else None
    return None
