"""Points as bytes: small columns, bit for bit, in order of arrival.

A block is one byte that says how it is packed, the number of points, and the points: rows as they are where
they are few, else four columns. Integers (step, time, session) are a beginning and a difference where the
difference is always the same, and otherwise a beginning and the differences in as few bytes as they fit.
Bytes of equal place stand together (the exponents of all values, then their first mantissa bytes and so on),
and zstd takes what repeats: losses that were born as float32 at regular steps and jittered times take about
four bytes a point. zlib takes eight times as long and saves nothing (docs/decisions.md).
"""

from __future__ import annotations

import struct
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from infra.server.store.points import Points, join

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = [
    "WORTH_PACKING",
    "decode",
    "decode_all",
    "encode",
    "pack_table",
    "plain",
    "rows_of",
    "unpack_table",
]

_PLAIN, _PACKED = 0, 1
_HEAD = struct.Struct("<BI")  # packing, number of points
_REGULAR = struct.Struct("<Bqq")  # 0, first, difference
_IRREGULAR = struct.Struct("<Bq")  # bytes of a difference, first
_WIDTHS: tuple[tuple[int, Any], ...] = ((1, np.uint8), (2, np.uint16), (4, np.uint32), (8, np.uint64))
_TYPES = dict(_WIDTHS)
WORTH_PACKING = 24
"""Points. Fewer take 33 bytes each until they are folded, and less time."""


def rows_of(points: Points) -> NDArray[np.int64]:
    """Return points as rows of four: step, time, session, and the bits of the value."""
    rows = np.empty((len(points), 4), dtype=np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = points.steps, points.timestamps_ms, points.sessions
    rows[:, 3] = points.values.view(np.int64)
    return rows


def plain(rows: NDArray[np.int64]) -> bytes:
    """Return rows as they are, which is a block too: less work than packing where it is few points."""
    return _HEAD.pack(_PLAIN, len(rows)) + rows.tobytes()


def encode(points: Points) -> bytes:
    """Return at least one point as bytes."""
    if len(points) < WORTH_PACKING:
        return plain(rows_of(points))
    columns = map(_integers, (points.steps, points.timestamps_ms, points.sessions))
    body = b"".join([*columns, _planes(points.values)])
    return _HEAD.pack(_PACKED, len(points)) + zstandard.ZstdCompressor(level=1).compress(body)


def decode(data: bytes) -> Points:
    """Return the points of a block."""
    packing, count = _HEAD.unpack_from(data)
    if packing == _PLAIN:
        return _of_rows(data[_HEAD.size :])
    assert packing == _PACKED, f"no packing has the number {packing}"
    body = zstandard.ZstdDecompressor().decompress(data[_HEAD.size :])
    steps, at = _read_integers(body, 0, count)
    timestamps_ms, at = _read_integers(body, at, count)
    sessions, at = _read_integers(body, at, count)
    return Points(steps, timestamps_ms, _read_planes(body, at, count, np.float64), sessions)


def decode_all(blocks: Iterable[bytes]) -> Points:
    """Return the points of blocks, one after another. Neighbours that are plain cost as much as one."""
    parts = []
    for kind, of_kind in groupby(blocks, key=itemgetter(0)):
        if kind == _PLAIN:
            parts.append(_of_rows(b"".join([data[_HEAD.size :] for data in of_kind])))
        else:
            parts += map(decode, of_kind)
    return join(parts)


def pack_table(table: NDArray[np.int64]) -> bytes:
    """Return a table of few columns (its rows) of numbers as bytes, fast to unpack."""
    # A compressor is not safe to share between threads, and making one costs 1 µs.
    return zstandard.ZstdCompressor(level=1).compress(_planes(table.reshape(-1)))


def unpack_table(data: bytes, num_columns: int) -> NDArray[np.int64]:
    """Return the table that `pack_table` was given."""
    body = zstandard.ZstdDecompressor().decompress(data)
    table: NDArray[np.int64] = _read_planes(body, 0, len(body) // 8, np.int64).reshape(num_columns, -1)
    return table


def _of_rows(data: bytes) -> Points:
    columns = np.ascontiguousarray(np.frombuffer(data, dtype=np.int64).reshape(-1, 4).T)
    return Points(columns[0], columns[1], columns[3].view(np.float64), columns[2])


def _integers(column: NDArray[np.int64]) -> bytes:
    first = int(column[0])
    if len(column) == 1:
        return _REGULAR.pack(0, first, 0)
    differences = np.diff(column)
    least, most = int(differences.min()), int(differences.max())
    if least == most:
        return _REGULAR.pack(0, first, least)
    # Small negative numbers become small positive ones: 0, -1, 1, -2 are 0, 1, 2, 3.
    zigzag = ((differences << 1) ^ (differences >> 63)).view(np.uint64)
    most = max(2 * most, -2 * least)
    width, kind = next((width, kind) for width, kind in _WIDTHS if most >> (8 * width) == 0)
    return _IRREGULAR.pack(width, first) + _planes(zigzag.astype(kind))


def _read_integers(body: bytes, at: int, count: int) -> tuple[NDArray[np.int64], int]:
    if body[at] == 0:
        _, first, difference = _REGULAR.unpack_from(body, at)
        return first + difference * np.arange(count, dtype=np.int64), at + _REGULAR.size
    width, first = _IRREGULAR.unpack_from(body, at)
    at += _IRREGULAR.size
    zigzag = _read_planes(body, at, count - 1, _TYPES[width])
    differences = (zigzag >> 1) ^ -(zigzag & 1)  # unsigned, so a minus wraps to all ones
    column = np.empty(count, dtype=np.int64)
    column[0] = first
    column[1:] = differences.view(f"i{width}")
    np.cumsum(column, out=column)
    return column, at + width * (count - 1)


def _planes(column: NDArray[Any]) -> bytes:
    """Return the bytes of a column, all first bytes before all second ones."""
    width = column.dtype.itemsize
    if width == 1 or len(column) == 1:
        return column.tobytes()
    return np.ascontiguousarray(column.view(np.uint8).reshape(-1, width).T).tobytes()


def _read_planes(body: bytes, at: int, count: int, kind: Any) -> NDArray[Any]:
    width = np.dtype(kind).itemsize
    planes = np.frombuffer(body, dtype=np.uint8, count=width * count, offset=at).reshape(width, count)
    joined = np.empty((count, width), dtype=np.uint8)
    for place, plane in enumerate(planes):  # half the time of copying the transposed view
        joined[:, place] = plane
    return joined.reshape(-1).view(kind)
