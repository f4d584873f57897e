"""What the first chart of a new process would have to wait for, done before the process serves.

The first use of the code that draws, of its statements and of a route is a third of a first chart's time, and
a fiftieth of a start's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import orjson

from infra.server import charts
from infra.server.refusals import Refused
from infra.server.store import access, blocks, experiments, series, sessions, summaries
from infra.server.store.points import points

if TYPE_CHECKING:
    from fastapi import FastAPI
    from sqlalchemy import Connection
    from starlette.types import Message

    from infra.server.store.store import Store

__all__ = ["warm_up"]

_logger = logging.getLogger(__name__)
_NOTHING = -1
"""No row has this id."""
_NUM_GROUPS = 65_536
"""As many as eight million points have: memory that was in use once is there again at once."""
_WIDTH = 1_000


async def warm_up(app: FastAPI, store: Store) -> None:
    """Do once what a chart does; nothing depends on it."""
    try:
        await store.read(_ask)
        await _knock(app)
    except Exception as error:  # noqa: BLE001 - the first request meets the same, and says so
        _logger.info("not warmed up: %s", error)


def _ask(connection: Connection) -> None:
    """Ask for what is not there, and draw what nobody sees."""
    access.find_key(connection, "")
    try:
        experiments.find(connection, _NOTHING, "")
    except Refused:
        list(series.of_experiment(connection, _NOTHING, [""]))
    sessions.ranks(connection, _NOTHING)
    blocks.layout(connection, _NOTHING)
    blocks.summaries_of(connection, _NOTHING, first_step=0, last_step=0)
    orjson.dumps(charts.buckets(_curve(connection), _WIDTH), option=orjson.OPT_SERIALIZE_NUMPY)


def _curve(connection: Connection) -> charts.Curve:
    begins = summaries.GROUP_POINTS * np.arange(_NUM_GROUPS)
    counts, zeros = np.full(_NUM_GROUPS, summaries.GROUP_POINTS), np.zeros(_NUM_GROUPS, dtype=np.int64)
    values = begins.astype(np.float64)
    whole = summaries.Groups(begins, begins + counts - 1, zeros, zeros + 1, values, values, values)
    size = blocks.CHUNK_POINTS // summaries.GROUP_POINTS
    groups = summaries.join(
        [
            summaries.decode(summaries.encode(whole.take(np.arange(first, first + size))))
            for first in range(0, _NUM_GROUPS, size)
        ]
    )
    nothing = points((), (), (), ())
    return charts.Drawing(connection, _NOTHING, charts.Window(), nothing, groups, begins, counts).curve(
        {}, width=_WIDTH
    )


async def _knock(app: FastAPI) -> None:
    """Send a request for a chart through the whole application; it is refused, as nobody asks."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/api/experiments/-/chart",
        "raw_path": b"/api/experiments/-/chart",
        "root_path": "",
        "query_string": b"metric=-",
        "headers": [(b"authorization", b"Bearer -")],
        "client": None,
        "server": None,
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        del message

    await app(scope, receive, send)
