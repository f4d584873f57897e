"""From a data directory and an address to a server that answers, until it is told to stop."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
import uvicorn
from sqlalchemy.exc import DBAPIError

from infra.server.api.app import create_app
from infra.server.datadir import DataDir, Unusable, write_credentials
from infra.server.patience import PatientProtocol
from infra.server.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["serve"]

_GRACE_S = 5


def serve(data: Path, host: str, port: int, *, credentials: bool) -> None:
    """Serve until SIGTERM or SIGINT. The address is taken before anything else is touched.

    Raises:
        Unusable: The port, the directory or the database cannot be used.
    """
    listener = _listen(host, port)
    url = _url(host, listener)
    directory = DataDir(data)
    store = _open(directory)
    try:
        directory.ensure_key(store)
        if credentials:
            _write_credentials(directory, store, url)
        app = create_app(store, keyless=_is_loopback(listener))
        typer.echo(f"Metrics server at {url}")
        typer.echo(f"key in {directory.key_file}")
        sys.stdout.flush()
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
    finally:
        store.close()


class _Server(uvicorn.Server):
    """Ends with status 0 on a signal: uvicorn's own would raise the signal again once it has stopped."""

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


def _open(directory: DataDir) -> Store:
    try:
        return Store(directory.database)
    except DBAPIError as error:
        raise Unusable(f"the database {directory.database} cannot be used: {error.orig}") from error


def _url(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _write_credentials(directory: DataDir, store: Store, url: str) -> None:
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    try:
        key = directory.key_file.read_text().strip()
        written = write_credentials(
            config_home,
            key=key,
            host=url,
            organisation_id=directory.organisation_uid(store),
            now_ms=store.clock_ms(),
        )
    except OSError as error:
        raise Unusable(f"the credentials files cannot be written: {error}") from error
    for path in written:
        typer.echo(f"credentials in {path}")
