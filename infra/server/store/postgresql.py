"""PostgreSQL by URL. Several server processes may share one database.

Whoever writes holds one lock for the length of its transaction, so that commits of all processes follow one
another and each sees what the one before it left.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from infra.server.refusals import Unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["MAX_CONNECTIONS", "check", "engines", "order_by_bytes", "parse"]

MAX_CONNECTIONS = 21
"""How many connections one server process takes at most: 20 that read and one that writes."""

_WRITER_LOCK = 0x534C5547_4D455452  # any number that is always the same
_ESCAPED = {"\x00": "\x01\x01", "\x01": "\x01\x02"}


def parse(url: str) -> URL:
    """Return a checked URL of a database.

    Raises:
        Unusable: It is no URL, or one of another kind of database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise Unusable("the database must be given as postgresql://user@host:port/name") from error
    if parsed.drivername not in {"postgresql", "postgres", "postgresql+psycopg"}:
        raise Unusable(
            f"a database is given as postgresql://user@host:port/name, got {parsed.drivername}://...: "
            "for SQLite give a data directory"
        )
    return parsed.set(drivername="postgresql+psycopg")


def engines(url: str, *, busy_timeout_ms: int) -> tuple[Engine, Engine]:
    """Return what writes and what reads a database.

    `busy_timeout_ms` is how long another process may hold the lock or a table.

    Raises:
        Unusable: The URL is none, or psycopg is not installed.
    """
    writes = _engine(url, settings=_writer_settings(busy_timeout_ms), pool_size=1, prepare=_for_writes)
    reads = _engine(url, settings={}, pool_size=MAX_CONNECTIONS - 1, prepare=_for_reads)

    @event.listens_for(writes, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITER_LOCK})")

    return writes, reads


def check(connection: Connection) -> None:
    """Refuse a database in which text does not survive.

    Raises:
        Unusable: It is not encoded in UTF-8.
    """
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        raise Unusable(
            f"the database must be encoded in UTF8, got {encoding}: create one with ENCODING 'UTF8'"
        )


def order_by_bytes(connection: Connection, tables: Iterable[str]) -> None:
    """Order every text of some tables as SQLite does, whatever the language of the database.

    The two characters that stand for U+0000 and for U+0001 keep that order.
    """
    columns = connection.exec_driver_sql(
        "SELECT a.attrelid::regclass AS of_table, quote_ident(a.attname) AS of_column FROM pg_attribute a"
        " WHERE a.attrelid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(%s::text[]) AS name)"
        " AND a.atttypid = 'text'::regtype AND a.attcollation <> '\"C\"'::regcollation"
        " AND NOT a.attisdropped",
        (list(tables),),
    ).all()
    for table, column in columns:
        connection.exec_driver_sql(f'ALTER TABLE {table} ALTER COLUMN {column} TYPE text COLLATE "C"')


def _writer_settings(busy_timeout_ms: int) -> dict[str, str]:
    return {
        "synchronous_commit": "on",
        "lock_timeout": f"{busy_timeout_ms}ms",
        # A process that stopped in the middle of a transaction does not keep the others waiting for ever.
        "idle_in_transaction_session_timeout": "60s",
    }


def _engine(url: str, *, settings: dict[str, str], pool_size: int, prepare: Callable[[Any], None]) -> Engine:
    parsed = parse(url)
    try:
        engine = create_engine(
            parsed,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=30,
            pool_pre_ping=True,  # a connection that was cut while nobody used it costs nobody a request
            hide_parameters=True,
            connect_args=_connect_arguments(parsed, settings),
        )
    except ImportError as error:
        raise Unusable("psycopg is not installed: pip install 'slugline[postgresql]'") from error

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        for adapter in _exact_text():
            adapter(connection.adapters)
        prepare(connection)

    return engine


def _connect_arguments(url: URL, settings: dict[str, str]) -> dict[str, str]:
    """What a URL says wins over what is usual here, but not over what keeps a promise."""
    options = [str(url.query.get("options", "")), *(f"-c {name}={value}" for name, value in settings.items())]
    usual = {"connect_timeout": "5", "tcp_user_timeout": "15000", "application_name": "slugline-metrics"}
    return {
        **{name: value for name, value in usual.items() if name not in url.query},
        "client_encoding": "UTF8",
        "options": " ".join(option for option in options if option),
    }


def _for_writes(connection: Any) -> None:
    from psycopg import IsolationLevel

    # Every statement sees what the process that held the lock before has committed.
    connection.isolation_level = IsolationLevel.READ_COMMITTED


def _for_reads(connection: Any) -> None:
    from psycopg import IsolationLevel

    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    connection.read_only = True


@cache
def _exact_text() -> tuple[Callable[[Any], None], ...]:
    """Return what makes a connection give back every text as it was stored.

    PostgreSQL's text has no NUL. U+0000 and U+0001 are stored as two characters each, in the same order.
    """
    from psycopg.types.string import StrDumper, TextLoader

    class Dumper(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(_escaped(obj))

        def quote(self, obj: str) -> Any:
            return super().quote(_escaped(obj))

    class Loader(TextLoader):
        def load(self, data: Any) -> str | bytes:
            text = super().load(data)
            return _unescaped(text) if isinstance(text, str) else text

    def dump(adapters: Any) -> None:
        adapters.register_dumper(str, Dumper)

    def load(adapters: Any) -> None:
        adapters.register_loader("text", Loader)

    return dump, load


def _escaped(text: str) -> str:
    if "\x00" in text or "\x01" in text:
        return text.replace("\x01", _ESCAPED["\x01"]).replace("\x00", _ESCAPED["\x00"])
    return text


def _unescaped(text: str) -> str:
    if "\x01" in text:
        return text.replace(_ESCAPED["\x00"], "\x00").replace(_ESCAPED["\x01"], "\x01")
    return text
