"""Exported points as CSV, JSON lines or Parquet: one row a point, the same columns in each.

`experiment_id, experiment_slug, folder, metric_name, metadata (JSON text; an object in JSON lines), step,
timestamp_ms, value`.
"""

from __future__ import annotations

import csv
import io
import json
from typing import IO, TYPE_CHECKING, Any, Protocol

from infra.client.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.metrics.api import Frame
    from infra.metrics.find import Placed

__all__ = ["COLUMNS", "FORMATS", "Writer", "writer"]

COLUMNS = (
    "experiment_id",
    "experiment_slug",
    "folder",
    "metric_name",
    "metadata",
    "step",
    "timestamp_ms",
    "value",
)
_ROW_GROUP = 1 << 17


class Writer(Protocol):
    """Takes frames one after another; holds at most a row group of them."""

    def write(self, experiment: Placed, frame: Frame) -> None:
        """Write the points of a frame."""
        ...

    def close(self) -> None:
        """Write what is held and the end of the file; the file stays open."""
        ...


def writer(name: str, file: IO[bytes]) -> Writer:
    """Return a writer of a format of `FORMATS`.

    Raises:
        Rejected: the format is Parquet and pyarrow is not installed.
    """
    return FORMATS[name](file)


class _Csv:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        file.write(_csv_row(COLUMNS) + b"\r\n")

    def write(self, experiment: Placed, frame: Frame) -> None:
        begins = _csv_row(_constant(experiment, frame)).decode()
        rows = zip(frame.data.step, frame.data.timestampMs, frame.data.value, strict=True)
        self._file.write(
            "".join(
                [
                    f"{begins},{'' if step is None else step},{at_ms},{value!r}\r\n"
                    for step, at_ms, value in rows
                ]
            ).encode()
        )

    def close(self) -> None:
        """Do nothing: a file of lines has no end."""


class _Jsonl:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, experiment: Placed, frame: Frame) -> None:
        fields: dict[str, Any] = dict(zip(COLUMNS, _constant(experiment, frame), strict=False))
        fields["metadata"] = frame.metadata
        begins = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))[:-1]
        rows = zip(frame.data.step, frame.data.timestampMs, frame.data.value, strict=True)
        self._file.write(
            "".join(
                [
                    f'{begins},"step":{"null" if step is None else step},'
                    f'"timestamp_ms":{at_ms},"value":{value!r}}}\n'
                    for step, at_ms, value in rows
                ]
            ).encode()
        )

    def close(self) -> None:
        """Do nothing: a file of lines has no end."""


class _Parquet:
    def __init__(self, file: IO[bytes]) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise Rejected(
                "Parquet needs pyarrow, which is not installed: pip install 'slugline[export]',"
                " or export CSV or JSON lines"
            ) from error
        self._pa = pa
        texts = [(name, pa.string()) for name in COLUMNS[:5]]
        numbers = [("step", pa.int64()), ("timestamp_ms", pa.int64()), ("value", pa.float64())]
        self._schema = pa.schema([*texts, *numbers])
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._held: list[Any] = []
        self._num_held = 0

    def write(self, experiment: Placed, frame: Frame) -> None:
        pa, data = self._pa, frame.data
        num = len(data.value)
        texts = [pa.repeat(pa.scalar(text, pa.string()), num) for text in _constant(experiment, frame)]
        numbers = [pa.array(data.step, pa.int64()), pa.array(data.timestampMs, pa.int64())]
        columns = [*texts, *numbers, pa.array(data.value, pa.float64())]
        self._held.append(pa.record_batch(columns, schema=self._schema))
        self._num_held += num
        if self._num_held >= _ROW_GROUP:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
            self._writer.close()
        finally:
            self._writer.is_open = False  # else it would try again when it is collected, and say so

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(self._pa.Table.from_batches(self._held), row_group_size=self._num_held)
        self._held, self._num_held = [], 0


FORMATS: dict[str, Callable[[IO[bytes]], Writer]] = {"csv": _Csv, "jsonl": _Jsonl, "parquet": _Parquet}


def _constant(experiment: Placed, frame: Frame) -> tuple[str, str, str, str, str]:
    """Return the columns that are the same for every point of a frame."""
    metadata = json.dumps(frame.metadata, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return experiment.id, experiment.slug, experiment.folder, frame.seriesName, metadata


def _csv_row(cells: tuple[str, ...]) -> bytes:
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(cells)
    return row.getvalue().encode()
