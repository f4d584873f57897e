"""The application of the Metrics server in this process, behind the real protocol on a free port."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from infra.server.patience import PatientProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

__all__ = ["served"]


@contextmanager
def served(app: FastAPI, protocol: type[PatientProtocol] = PatientProtocol) -> Iterator[str]:
    """Serve an application in a thread; give its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, server_header=False, http=protocol)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the application does not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
