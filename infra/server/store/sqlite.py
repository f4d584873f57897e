"""SQLite: one file in WAL mode. A commit has reached the disk when it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["engines"]

_WRITER_PRAGMAS = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "foreign_keys": "ON",
    "cache_size": "-65536",
    "journal_size_limit": str(64 * 2**20),
}
_READER_PRAGMAS = {
    "query_only": "ON",
    "cache_size": "-8192",
}


def engines(path: Path, *, busy_timeout_ms: int) -> tuple[Engine, Engine]:
    """Return what writes and what reads a file, which need not be there."""
    busy = {"busy_timeout": str(busy_timeout_ms)}
    return (
        _engine(path, begin="BEGIN IMMEDIATE", pragmas=busy | _WRITER_PRAGMAS, pool_size=1),
        _engine(path, begin="BEGIN", pragmas=busy | _READER_PRAGMAS, pool_size=8),
    )


def _engine(path: Path, *, begin: str, pragmas: dict[str, str], pool_size: int) -> Engine:
    engine = create_engine(
        # Not a text: a `%` or `?` in the path would be read as more than a letter.
        URL.create("sqlite", database=str(path)),
        pool_size=pool_size,
        max_overflow=64,
        pool_timeout=30,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we begin transactions ourselves, and say of which kind
        for name, value in pragmas.items():
            connection.execute(f"PRAGMA {name}={value}")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
