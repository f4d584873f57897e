"""A run's telemetry: numbered points, appended a batch at a time, kept as the lines that readers get.

A batch says after which point it comes and is refused unless that is the last one, so the same batch sent
twice is stored once and nothing comes in between. Its points, the counts, the summary and the cursor of
whoever sends it are one transaction. Small blocks of about one size become one, as they grow in number, until
it has 256 KiB of lines: a point is packed about four times in all, whatever the pace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from infra.server.refusals import Refused
from infra.server.store import deflated, sql
from infra.server.store.deflated import Part
from runtime.telemetry import rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from infra.server.store.database import AnyRow
    from infra.server.store.streams import Reads

__all__ = [
    "BLOCK_BYTES",
    "Batch",
    "Summary",
    "append",
    "batch_of",
    "begin",
    "cursor_of",
    "mark_attempt",
    "parts",
    "standing",
]

BLOCK_BYTES = 256 * 1024
"""Of lines: a block that has so many is done."""
_FAN_OUT = 16
_READ_AT_ONCE = 8
_MAX_SMALL = 128
"""More than there ever are: fewer than 16 of each size, and 16 to the fifth is more points than a run has."""

Summary = dict[str, list[Any]]
"""Of each key in order of arrival: how many points carry it, its last, its lowest and its highest value."""


class Block(NamedTuple):
    """Points from the one of seq `first` on, as lines."""

    first: int
    num_points: int
    part: Part

    @property
    def end(self) -> int:
        """One past its last point."""
        return self.first + self.num_points


@dataclass(frozen=True, slots=True)
class Batch:
    """Points that come after the one of seq `after_seq`, packed, with what they add to the summary.

    `dropped` are the counts of the run so far by reason, `cursor` is JSON.
    """

    after_seq: int
    count: int
    blocks: Sequence[Block]
    summary: Summary
    dropped: Mapping[str, int]
    cursor: str | None


class _Extent(NamedTuple):
    first: int
    num_points: int
    size: int


def batch_of(
    points: Sequence[Mapping[str, int | float]],
    *,
    after_seq: int,
    dropped: Mapping[str, int],
    cursor: str | None,
) -> Batch:
    """Return checked points as a batch."""
    summary: Summary = {}
    blocks: list[Block] = []
    lines: list[str] = []
    first, size = after_seq + 1, 0
    for seq, point in enumerate(points, start=after_seq + 1):
        line = f'{{"seq": {seq}, "data": {json.dumps(point)}}}\n'
        lines.append(line)
        size += len(line)
        _count(summary, point)
        if size >= BLOCK_BYTES:
            blocks.append(_block(first, lines))
            first, size, lines = seq + 1, 0, []
    if lines:
        blocks.append(_block(first, lines))
    return Batch(after_seq, len(points), blocks, summary, dropped, cursor)


def begin(connection: Connection, run_id: int) -> None:
    """Store that a run has no telemetry yet."""
    sql.run(
        connection,
        "INSERT INTO telemetry_states (run_id, last_seq, summary, dropped, attempts) VALUES (?, 0, ?, ?, ?)",
        (run_id, "[]", "{}", "[]"),
    )


def mark_attempt(connection: Connection, run_id: int, attempt: int, *, now_ms: int) -> None:
    """Note that what comes from now on is a newer attempt's."""
    row = sql.one(connection, "SELECT last_seq, attempts FROM telemetry_states WHERE run_id = ?", (run_id,))
    assert row is not None
    marks = [*json.loads(row.attempts), [attempt, row.last_seq, now_ms]][-_MAX_MARKS:]
    sql.run(
        connection,
        "UPDATE telemetry_states SET attempts = ? WHERE run_id = ?",
        (_text(marks), run_id),
    )


_MAX_MARKS = 1000


def append(connection: Connection, row: AnyRow, batch: Batch) -> int:
    """Store a batch of a run, whose row was read in this transaction; return the seq of its last point.

    Raises:
        Refused: The batch does not come after the last point, or a limit of the page is passed.
    """
    if batch.after_seq != row.last_seq:
        raise Refused(
            "seq_moved",
            f"the run has points up to seq {row.last_seq}, the batch comes after {batch.after_seq}:"
            " go on from the cursor in this answer",
            details={"last_seq": row.last_seq},
            stored=cursor_of(connection, row),
        )
    last_seq = row.last_seq + batch.count
    if last_seq > rules.MAX_RUN_POINTS:
        raise _too_many("points", rules.MAX_RUN_POINTS, last_seq)
    summary = _merged(json.loads(row.summary), batch.summary)
    if len(summary) > rules.MAX_RUN_KEYS:
        raise _too_many("keys", rules.MAX_RUN_KEYS, len(summary))
    _insert(connection, row.id, batch.blocks)
    _fold(connection, row.id)
    sql.run(
        connection,
        "UPDATE telemetry_states SET last_seq = ?, summary = ?, dropped = ?, cursor = ? WHERE run_id = ?",
        (last_seq, _text(summary), _text(dict(batch.dropped)), batch.cursor, row.id),
    )
    return int(last_seq)


def cursor_of(connection: Connection, row: AnyRow) -> dict[str, Any]:
    """Return all that whoever sends a run's telemetry needs to go on, its own cursor included."""
    cursor = sql.scalar(connection, "SELECT cursor FROM telemetry_states WHERE run_id = ?", (row.id,))
    return {
        **standing(row),
        "attempt": row.attempt,
        "cursor": None if cursor is None else json.loads(cursor),
    }


def standing(row: AnyRow) -> dict[str, Any]:
    """Return how far a run's telemetry is, given the run's row."""
    return {
        "points": row.last_seq,
        "last_seq": row.last_seq,
        "keys": [one[0] for one in json.loads(row.summary)],
        "dropped": json.loads(row.dropped),
    }


def parts(reads: Reads, run_id: int, *, after: int, last: int) -> Iterator[Part]:
    """Yield the lines of the points after one and up to another, a few blocks in a view of the database."""
    seq = after + 1
    while seq <= last:
        found = reads(lambda connection, seq=seq: _blocks(connection, run_id, seq))  # type: ignore[misc]
        if not found:
            return
        for block in found:
            if block.first > last:
                return
            yield _cut(block, seq, last)
            seq = block.end


def _blocks(connection: Connection, run_id: int, seq: int) -> list[Block]:
    """Return some blocks from the one that holds a point on, whatever blocks there are by now."""
    rows = sql.run(
        connection,
        "SELECT first, num_points, size, crc, data FROM telemetry_blocks WHERE run_id = ?"
        " AND first >= coalesce((SELECT max(first) FROM telemetry_blocks WHERE run_id = ? AND first <= ?), 0)"
        " ORDER BY first LIMIT ?",
        (run_id, run_id, seq, _READ_AT_ONCE),
    )
    return [Block(row[0], row[1], Part(row[2], row[3], bytes(row[4]))) for row in rows]


def _cut(block: Block, first: int, last: int) -> Part:
    begin, end = max(first - block.first, 0), last + 1 - block.first
    if begin == 0 and end >= block.num_points:
        return block.part
    lines = deflated.unpack(block.part.data).splitlines(keepends=True)
    return deflated.pack(b"".join(lines[begin:end]))


def _count(summary: Summary, point: Mapping[str, int | float]) -> None:
    for key, value in point.items():
        found = summary.get(key)
        if found is None:
            summary[key] = [1, value, value, value]
            continue
        found[0] += 1
        found[1] = value
        found[2] = min(found[2], value)
        found[3] = max(found[3], value)


def _merged(known: list[list[Any]], fresh: Summary) -> list[list[Any]]:
    merged = {one[0]: one for one in known}
    for key, (count, last, low, high) in fresh.items():
        found = merged.get(key)
        if found is None:
            merged[key] = [key, count, last, low, high]
        else:
            merged[key] = [key, found[1] + count, last, min(found[3], low), max(found[4], high)]
    return list(merged.values())


def _block(first: int, lines: Sequence[str]) -> Block:
    return Block(first, len(lines), deflated.pack("".join(lines).encode()))


def _insert(connection: Connection, run_id: int, blocks: Iterable[Block]) -> None:
    sql.many(
        connection,
        "INSERT INTO telemetry_blocks (run_id, first, num_points, size, crc, data) VALUES (?, ?, ?, ?, ?, ?)",
        [(run_id, block.first, block.num_points, *block.part) for block in blocks],
    )


def _fold(connection: Connection, run_id: int) -> None:
    rows = sql.run(
        connection,
        "SELECT first, num_points, size FROM telemetry_blocks WHERE run_id = ? ORDER BY first DESC LIMIT ?",
        (run_id, _MAX_SMALL),
    )
    extents = (_Extent(row[0], row[1], row[2]) for row in rows)
    small = list(takewhile(lambda extent: extent.size < BLOCK_BYTES, extents))
    folded = small[: _due(small)]
    if len(folded) < 2:
        return
    first, last = folded[-1].first, folded[0].first
    found = sql.run(
        connection,
        "SELECT data FROM telemetry_blocks WHERE run_id = ? AND first >= ? AND first <= ? ORDER BY first",
        (run_id, first, last),
    )
    lines = deflated.unpack(b"".join(row[0] for row in found))
    sql.run(
        connection,
        "DELETE FROM telemetry_blocks WHERE run_id = ? AND first >= ? AND first <= ?",
        (run_id, first, last),
    )
    count = sum(extent.num_points for extent in folded)
    _insert(connection, run_id, [Block(first, count, deflated.pack(lines))])


def _due(small: Sequence[_Extent]) -> int:
    """Return how many of the last small blocks, the last one first, are to become one.

    That is a whole block's worth of them, or 16 of one size.
    """
    if sum(extent.size for extent in small) >= BLOCK_BYTES:
        return len(small)
    num_last, size = 0, _FAN_OUT
    while num_last < len(small):
        smaller = num_last
        while num_last < len(small) and small[num_last].num_points < size:
            num_last += 1
        if num_last - smaller >= _FAN_OUT:
            return num_last
        size *= _FAN_OUT
    return 0


def _too_many(what: str, limit: int, got: int) -> Refused:
    return Refused("limit_exceeded", f"a run keeps at most {limit:,} {what}, this batch would make {got:,}")


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
