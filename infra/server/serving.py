"""From a database and an address to a server that answers, until it is told to stop."""

from __future__ import annotations

import ipaddress
import logging
import resource
import signal
import socket
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, cast

import typer
import uvicorn
from sqlalchemy.exc import DBAPIError

from infra.server.api.app import create_app
from infra.server.first_start import ensure_key, export_line, log_in
from infra.server.patience import PatientProtocol
from infra.server.refusals import StoreUnavailable, Unusable
from infra.server.store.database import reason
from infra.server.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from fastapi import FastAPI

    from infra.server.api.news import News
    from infra.server.datadir import Place

__all__ = ["configure_logging", "open_store", "serve"]

_GRACE_S = 5
_MAX_FILES = 65_536


def serve(place: Place, *, host: str, port: int, credentials: bool, keyless: bool) -> None:
    """Serve until SIGTERM or SIGINT. The address is taken before anything else is touched.

    `credentials` says whether the key of the first start is also written where the public clients look,
    `keyless` whether pages are shown without a key to whoever is at the machine itself.

    Raises:
        Unusable: The port, the directory or the database cannot be used.
    """
    listener = _listen(host, port)
    _allow_many_connections()
    url = _url(host, listener)
    with place.hold(), closing(open_store(place)) as store:
        _introduce(place, store, url, credentials=credentials)
        app = create_app(store, keyless=keyless and _is_loopback(listener))
        _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                http=PatientProtocol,
                timeout_graceful_shutdown=_GRACE_S,
            )
        ).run(sockets=[listener])


def configure_logging() -> None:
    """Log to standard error, as a service does."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)


def open_store(place: Place) -> Store:
    """Open a place's database, its tables brought up to date.

    Raises:
        Unusable: It cannot be reached or written, or is none that this version can use.
    """
    try:
        return Store(place.address)
    except DBAPIError as error:
        raise Unusable(f"the database {place.name} cannot be used: {reason(error)}") from error


def _introduce(place: Place, store: Store, url: str, *, credentials: bool) -> None:
    """Say where the server is and where its key; the key itself is never shown."""
    try:
        key = ensure_key(place, store)
    except StoreUnavailable as error:
        raise Unusable(error.message) from error
    typer.echo(f"Metrics server at {url}")
    if key.file.exists():
        typer.echo(f"key in {key.file}")
        typer.echo(f"for clients that read the environment: {export_line(key)}")
        if credentials:
            for line in log_in(key, url, now_ms=store.clock_ms()):
                typer.echo(line)
    sys.stdout.flush()


class _Server(uvicorn.Server):
    """Ends with status 0 on a signal: uvicorn's own would raise the signal again once it has stopped.

    Requests that wait for news are then answered with what there is.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end."""
        super().handle_exit(sig, frame)
        news: News = cast("FastAPI", self.config.app).state.news
        news.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise Unusable(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listener


def _allow_many_connections() -> None:
    """Take as many open files as this process may have: many systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _url(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
