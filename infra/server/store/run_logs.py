"""The logs of a run's attempts: text, appended at the offset that it says, kept up to a limit per run."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from infra.server.refusals import Refused
from infra.server.store import deflated, sql
from infra.server.store.deflated import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from infra.server.store.streams import Reads

__all__ = [
    "MAX_LOG_BYTES",
    "MAX_TEXT_BYTES",
    "Log",
    "append",
    "find",
    "newest",
    "next_after",
    "of_run",
    "parts",
]

MAX_LOG_BYTES = 64 * 2**20
"""Of all attempts of a run together."""
MAX_TEXT_BYTES = 2**20
"""Of what is appended at once."""
_BLOCK_BYTES = 64 * 1024
_FAN_OUT = 16
_LOGS = "SELECT id, attempt, sent, kept, cut_short FROM run_logs"
_READ_AT_ONCE = 8
_FULL = (
    b"[the log of this run is longer than 64 MiB: the rest is not kept here,"
    b" the whole of it lies at the run's location]\n"
)


class Log(NamedTuple):
    """One attempt's log. `sent` bytes were appended, of which `kept` are there to read.

    Once it is `cut_short` they end with a line that says so.
    """

    id: int
    attempt: int
    sent: int = 0
    kept: int = 0
    cut_short: bool = False


def append(connection: Connection, run_id: int, *, attempt: int, offset: int, text: bytes) -> Log:
    """Append what comes at an offset of all that was sent of an attempt's log.

    Raises:
        Refused: Not so much, or more, was sent so far.
    """
    log = find(connection, run_id, attempt) or Log(0, attempt)
    if offset != log.sent:
        raise Refused(
            "offset_moved",
            f"{log.sent} bytes of attempt {attempt}'s log are here, the text comes at {offset}:"
            " go on from where it ends",
            details={"offset": log.sent},
            stored={"offset": log.sent},
        )
    if log.id == 0:
        log = _begin(connection, run_id, attempt)
    kept, cut_short = _fitting(connection, run_id, log, text)
    if kept:
        _insert(connection, log.id, log.kept, deflated.pack(kept))
        _fold(connection, log.id)
    grown = log._replace(sent=log.sent + len(text), kept=log.kept + len(kept), cut_short=cut_short)
    sql.run(
        connection,
        "UPDATE run_logs SET sent = ?, kept = ?, cut_short = ? WHERE id = ?",
        (grown.sent, grown.kept, grown.cut_short, log.id),
    )
    return grown


def find(connection: Connection, run_id: int, attempt: int) -> Log | None:
    """Return an attempt's log, if it has one."""
    return _one(connection, f"{_LOGS} WHERE run_id = ? AND attempt = ?", run_id, attempt)


def newest(connection: Connection, run_id: int) -> Log | None:
    """Return the log of the newest attempt that has one."""
    return _one(connection, f"{_LOGS} WHERE run_id = ? ORDER BY attempt DESC LIMIT 1", run_id)


def next_after(connection: Connection, run_id: int, attempt: int) -> Log | None:
    """Return the log of the attempt that comes after one."""
    statement = f"{_LOGS} WHERE run_id = ? AND attempt > ? ORDER BY attempt LIMIT 1"
    return _one(connection, statement, run_id, attempt)


def of_run(connection: Connection, run_id: int, *, limit: int = 100) -> list[Log]:
    """Return the logs of a run's newest attempts that have one, in their order."""
    rows = sql.run(connection, f"{_LOGS} WHERE run_id = ? ORDER BY attempt DESC LIMIT ?", (run_id, limit))
    return [Log(*row) for row in rows][::-1]


def parts(reads: Reads, log: Log, *, after: int) -> Iterator[Part]:
    """Yield what a log holds after so many bytes, a few blocks in a view of the database."""
    at = after
    while at < log.kept:
        found = reads(lambda connection, at=at: _blocks(connection, log.id, at))  # type: ignore[misc]
        if not found:
            return
        for first, part in found:
            if first >= log.kept:
                return
            yield _cut(first, part, at, log.kept)
            at = first + part.size


def _one(connection: Connection, statement: str, *values: int) -> Log | None:
    row = sql.one(connection, statement, values)
    return None if row is None else Log(*row)


def _begin(connection: Connection, run_id: int, attempt: int) -> Log:
    made = sql.scalar(
        connection,
        "INSERT INTO run_logs (run_id, attempt, sent, kept, cut_short) VALUES (?, ?, 0, 0, ?) RETURNING id",
        (run_id, attempt, False),
    )
    return Log(made, attempt)


def _fitting(connection: Connection, run_id: int, log: Log, text: bytes) -> tuple[bytes, bool]:
    """Return what of a text is kept, and whether nothing will be from now on: a log has no hole."""
    if log.cut_short or not text:
        return b"", log.cut_short
    total = sql.scalar(connection, "SELECT sum(kept) FROM run_logs WHERE run_id = ?", (run_id,))
    free = MAX_LOG_BYTES - int(total)
    if len(text) <= free:
        return text, False
    head = text[: max(free, 0)]
    return head[: head.rfind(b"\n") + 1] + _FULL, True


def _blocks(connection: Connection, log_id: int, at: int) -> list[tuple[int, Part]]:
    rows = sql.run(
        connection,
        "SELECT first, size, crc, data FROM run_log_blocks WHERE log_id = ? AND first >= coalesce("
        "(SELECT max(first) FROM run_log_blocks WHERE log_id = ? AND first <= ?), 0) ORDER BY first LIMIT ?",
        (log_id, log_id, at, _READ_AT_ONCE),
    )
    return [(row[0], Part(row[1], row[2], bytes(row[3]))) for row in rows]


def _cut(first: int, part: Part, at: int, end: int) -> Part:
    if first >= at and first + part.size <= end:
        return part
    return deflated.pack(deflated.unpack(part.data)[max(at - first, 0) : end - first])


def _insert(connection: Connection, log_id: int, first: int, part: Part) -> None:
    sql.run(
        connection,
        "INSERT INTO run_log_blocks (log_id, first, size, crc, data) VALUES (?, ?, ?, ?, ?)",
        (log_id, first, *part),
    )


def _fold(connection: Connection, log_id: int) -> None:
    """Make one of the last blocks once many small ones follow one another."""
    rows = sql.run(
        connection,
        "SELECT first, size FROM run_log_blocks WHERE log_id = ? AND size < ? ORDER BY first DESC LIMIT ?",
        (log_id, _BLOCK_BYTES, _FAN_OUT),
    )
    small = [(row[0], row[1]) for row in rows]
    follow = all(first + size == later for (later, _), (first, size) in pairwise(small))
    if len(small) < _FAN_OUT or not follow:
        return
    which = "FROM run_log_blocks WHERE log_id = ? AND first >= ?"
    values = (log_id, small[-1][0])
    found = sql.run(connection, f"SELECT data {which} ORDER BY first", values)
    text = deflated.unpack(b"".join(row[0] for row in found))
    sql.run(connection, f"DELETE {which}", values)
    _insert(connection, log_id, small[-1][0], deflated.pack(text))
