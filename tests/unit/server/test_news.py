"""Waiting for news of a run."""

import asyncio
import contextlib
import signal
import socket

import httpx
import pytest
import uvicorn

from infra.server import serving
from infra.server.api import news as module
from infra.server.api.app import create_app
from infra.server.api.news import News
from infra.server.refusals import Refused
from infra.server.store import access
from infra.server.store.store import Store
from tests.support.run_points import new_run
from tests.support.served_app import served


@pytest.fixture(autouse=True)
def nobody_looks_again(monkeypatch):
    """What is found is what was told; a test that is wrong about it waits until its time is over."""
    monkeypatch.setattr(module, "_LOOK_AGAIN_S", 60)


class Counter:
    """A number that somebody waits for."""

    def __init__(self):
        self.number = 0
        self.looks = 0

    async def look(self):
        self.looks += 1
        return self.number


async def nobody_is_gone():
    return False


def waiting(news, counter, number, *, run_id=1, wait_s=60.0):
    until = number.__le__
    return asyncio.create_task(
        news.wait(run_id, counter.look, until=until, wait_s=wait_s, is_gone=nobody_is_gone)
    )


async def until(fact):
    async with asyncio.timeout(60):
        while not fact():  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0)


async def looked(counter, looks=1):
    await until(lambda: counter.looks >= looks)


def test_who_waits_is_answered_once_there_is_what_they_wait_for():
    async def scenario():
        news, counter = News(), Counter()
        task = waiting(news, counter, 2)
        await looked(counter)
        counter.number = 1
        news.tell(1)
        await looked(counter, 2)
        assert not task.done()
        news.tell(2)
        counter.number = 2
        news.tell(1)
        assert await task == 2
        assert counter.looks == 3, "another run's news are nothing to look for"
        assert news._waiting == {}

    asyncio.run(scenario())


def test_what_happens_while_somebody_looks_is_looked_at_again():
    async def scenario():
        news, counter = News(), Counter()

        async def look():
            seen = await counter.look()
            if counter.looks == 1:
                counter.number = 1
                news.tell(1)
            return seen

        assert (
            await news.wait(1, look, until=lambda number: number == 1, wait_s=60, is_gone=nobody_is_gone) == 1
        )

    asyncio.run(scenario())


def test_without_news_the_answer_is_what_there_is_when_the_time_is_over():
    async def scenario():
        news, counter = News(), Counter()
        assert (
            await news.wait(1, counter.look, until=lambda _: False, wait_s=0.01, is_gone=nobody_is_gone) == 0
        )
        assert await news.wait(1, counter.look, until=lambda _: False, wait_s=0, is_gone=nobody_is_gone) == 0

    asyncio.run(scenario())


def test_at_the_end_of_the_server_nobody_waits():
    async def scenario():
        news, counter = News(), Counter()
        tasks = [waiting(news, counter, 9, run_id=run_id) for run_id in range(3)]
        await looked(counter, 3)
        news.close()
        assert await asyncio.gather(*tasks) == [0, 0, 0]
        assert await waiting(news, counter, 9) == 0

    asyncio.run(scenario())


def test_who_goes_away_is_forgotten():
    async def scenario():
        news, counter = News(), Counter()
        task = waiting(news, counter, 9)
        await looked(counter)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (news._waiting, news._num_waiting) == ({}, 0)

    asyncio.run(scenario())


def test_one_more_than_may_wait_is_told_to_come_again(monkeypatch):
    monkeypatch.setattr(module, "_MAX_WAITING", 2)

    async def scenario():
        news, counter = News(), Counter()
        tasks = [waiting(news, counter, 1) for _ in range(2)]
        await looked(counter, 2)
        with pytest.raises(Refused) as refused:
            await waiting(news, counter, 1)
        assert (refused.value.code, refused.value.retry_after_s) == ("unavailable", 2)
        counter.number = 1
        news.tell(1)
        assert await asyncio.gather(*tasks) == [1, 1]

    asyncio.run(scenario())


def test_what_another_server_wrote_is_found_by_looking_again(monkeypatch):
    monkeypatch.setattr(module, "_LOOK_AGAIN_S", 0.001)

    async def scenario():
        news, counter = News(), Counter()
        task = waiting(news, counter, 1)
        await looked(counter, 3)
        counter.number = 1
        assert await task == 1

    asyncio.run(scenario())


def test_the_room_of_a_client_that_went_away_is_free_at_once(tmp_path, monkeypatch):
    """A request that nobody waits for any more would otherwise take it for 25 seconds."""
    monkeypatch.setattr(module, "_LOOK_AGAIN_S", 0.01)
    store = Store(tmp_path / "metrics.sqlite3")
    new_run(store, slug="r")
    app = create_app(store, keyless=False)
    key = store.write_now(lambda connection: access.create_key(connection, 1, "k", role="viewer", now_ms=1))[
        1
    ]
    news = app.state.news

    async def scenario(url):
        headers = {"authorization": f"Bearer {key}"}
        for of in ("telemetry/points", "telemetry/summary", "log"):
            async with httpx.AsyncClient(headers=headers, timeout=60) as client:
                address = f"{url}/api/v1/runs/r/{of}"
                asked = asyncio.create_task(client.get(address, params={"wait_s": 25}))
                await until(lambda: news._num_waiting == 1)
                asked.cancel()
            async with asyncio.timeout(20):
                await until(lambda: news._num_waiting == 0)

    with served(app) as url:
        asyncio.run(scenario(url))
    store.close()


def test_a_server_that_is_told_to_stop_answers_those_who_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(serving._Server, "capture_signals", lambda _: contextlib.nullcontext())
    store = Store(tmp_path / "metrics.sqlite3")
    new_run(store, slug="r")
    app = create_app(store, keyless=False)
    key = store.write_now(lambda connection: access.create_key(connection, 1, "k", role="viewer", now_ms=1))[
        1
    ]

    async def scenario():
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/api/v1/runs/r/telemetry/points"
            server = serving._Server(uvicorn.Config(app, log_config=None))
            serves = asyncio.create_task(server.serve(sockets=[listener]))
            async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(60):
                await until(lambda: server.started)
                headers = {"authorization": f"Bearer {key}"}
                asked = asyncio.create_task(client.get(url, params={"wait_s": 25}, headers=headers))
                await until(lambda: app.state.news._num_waiting == 1)
                server.handle_exit(signal.SIGTERM, None)
                async with asyncio.timeout(20):
                    response = await asked
                await serves
        assert (response.status_code, response.text) == (200, "")

    asyncio.run(scenario())
    store.close()
