"""Runs for the server's tests, points that are made up, and the lines that must come of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from infra.server.store import access, runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from infra.server.store.store import Store

__all__ = ["POINTS", "lines_of", "new_run", "summary_of"]

Point = dict[str, Any]
_NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -0.0]),
)
POINTS = st.lists(
    st.dictionaries(st.sampled_from(["step", "loss", "eval.f1", "a-b_c"]), _NUMBERS), max_size=9
)


def new_run(store: Store, slug: str = "run") -> tuple[int, str]:
    """Make a run and return its organisation's id and its own."""

    def make(connection: Connection) -> tuple[int, str]:
        organisation = access.first_organisation(connection) or access.create_organisation(
            connection, "org", now_ms=1
        )
        new = runs.New(
            slug=slug,
            folder_id=None,
            kind="command",
            layout=None,
            checks=None,
            command=None,
            tree=None,
            files=None,
            meta="{}",
        )
        return organisation.id, runs.create(connection, organisation.id, new, now_ms=1)

    return store.write_now(make)


def lines_of(points: Sequence[Point], *, first: int = 1) -> bytes:
    """Return the lines that points are read as, the first of them of that seq."""
    return b"".join(
        f'{{"seq": {seq}, "data": {json.dumps(point)}}}\n'.encode() for seq, point in enumerate(points, first)
    )


def summary_of(points: Sequence[Point]) -> list[list[Any]]:
    """Return key, count, last, lowest and highest value of each key, in order of arrival."""
    values: dict[str, list[Any]] = {}
    for point in points:
        for key, value in point.items():
            values.setdefault(key, []).append(value)
    return [[key, len(found), found[-1], min(found), max(found)] for key, found in values.items()]
