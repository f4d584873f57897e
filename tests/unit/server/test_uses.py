"""When each key was last used."""

import asyncio

import pytest
from sqlalchemy import select

from infra.server.api.uses import Uses
from infra.server.refusals import StoreUnavailable
from infra.server.store import access
from infra.server.store.schema import keys
from infra.server.store.store import Store


@pytest.fixture
def store(address):
    store = Store(address, clock_ms=lambda: 5000)

    def make(connection):
        organisation = access.create_organisation(connection, "ours", now_ms=0)
        for name in "ab":
            access.create_key(connection, organisation.id, name, role="owner", now_ms=0)

    store.write_now(make)
    yield store
    store.close()


def stored(store):
    chosen = select(keys.c.last_used_ms).order_by(keys.c.id)
    return [row[0] for row in store.read_now(lambda connection: connection.execute(chosen).all())]


def test_uses_of_many_requests_are_one_write_and_known_before_it(store, monkeypatch):
    writes = []
    write = store.write

    def counted(work):
        writes.append(work)
        return write(work)

    monkeypatch.setattr(store, "write", counted)
    uses = Uses(store)
    for _ in range(100):
        uses.note(1)
        uses.note(2)
    assert (uses.latest(1, None), uses.latest(3, 7)) == (5000, 7)
    assert stored(store) == [None, None]
    asyncio.run(uses.flush())
    asyncio.run(uses.flush())
    assert stored(store) == [5000, 5000]
    assert len(writes) == 1


def test_an_older_use_never_replaces_a_later_one(store):
    store.write_now(lambda connection: connection.execute(keys.update().values(last_used_ms=9000)))
    uses = Uses(store)
    uses.note(1)
    asyncio.run(uses.flush())
    assert stored(store) == [9000, 9000]


def test_what_could_not_be_stored_is_stored_later(store, monkeypatch):
    async def fail(_work):
        raise StoreUnavailable("locked")

    uses = Uses(store)
    uses.note(1)
    with monkeypatch.context() as broken:
        broken.setattr(store, "write", fail)
        asyncio.run(uses.flush())
    assert stored(store) == [None, None]
    asyncio.run(uses.flush())
    assert stored(store) == [5000, None]


def test_uses_are_stored_at_every_interval_and_at_the_end(store, monkeypatch):
    async def run():
        flushed, write = asyncio.Event(), store.write

        async def told(work):
            await write(work)
            flushed.set()

        monkeypatch.setattr(store, "write", told)
        uses = Uses(store, interval_s=0.01)
        async with uses.kept():
            uses.note(1)
            await flushed.wait()
            assert stored(store) == [5000, None]
            uses.note(2)

    asyncio.run(run())
    assert stored(store) == [5000, 5000]


def test_a_use_whose_flush_the_end_cuts_off_is_stored_at_the_end(store, monkeypatch):
    async def run():
        begun, write = asyncio.Event(), store.write

        async def hang(_work):
            begun.set()
            await asyncio.Event().wait()

        uses = Uses(store, interval_s=0.01)
        async with uses.kept():
            monkeypatch.setattr(store, "write", hang)
            uses.note(1)
            await begun.wait()
            monkeypatch.setattr(store, "write", write)

    asyncio.run(run())
    assert stored(store) == [5000, None]
