"""A new process is warmed up by drawing what nobody sees; a start never fails by it."""

import asyncio
import contextlib
import logging

import pytest

from infra.server.api import warming
from infra.server.api.app import create_app
from infra.server.store.store import Store


@pytest.fixture
def store(address):
    with contextlib.closing(Store(address)) as store:
        yield store


def warm_up(store, caplog):
    async def whole():
        await warming.warm_up(create_app(store, keyless=True), store)

    with caplog.at_level(logging.INFO):
        asyncio.run(whole())
    return [record.getMessage() for record in caplog.records if record.name == warming.__name__]


def test_a_curve_is_drawn_and_a_request_goes_through_the_application(store, caplog):
    assert warm_up(store, caplog) == []
    curve = store.read_now(warming._curve)
    assert len(curve) == warming._NUM_GROUPS, "every group stands for its points: nothing was unpacked"


def test_a_database_that_does_not_answer_is_for_the_first_request_to_meet(store, caplog, monkeypatch):
    def fail(connection):
        raise OSError("no disk")

    monkeypatch.setattr(warming, "_ask", fail)
    assert warm_up(store, caplog) == ["not warmed up: no disk"]
