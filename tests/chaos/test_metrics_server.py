"""The Metrics server killed again and again under the public collector and our own sender."""

import random

import pytest

from tests.support.metrics_load import CollectorWriter, SenderWriter, kill_under
from tests.support.metrics_server import running_server
from tests.support.shared_load import BATCH, Load

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_many_kills_lose_and_double_nothing(request, tmp_path, kind, seed):
    kills = 25 if kind == "sqlite" else 10
    if kind == "sqlite":
        with running_server(tmp_path / "data") as server:
            campaign(server, kills, seed)
        return
    with (
        request.getfixturevalue("postgres").database() as url,
        running_server(tmp_path / "data", database=url) as server,
    ):
        campaign(server, kills, seed)


def campaign(server, kills, seed):
    writers = [
        kind(server, f"{kind.__name__}-{n}") for kind in (CollectorWriter, SenderWriter) for n in range(4)
    ]
    kill_under(server, writers, kills=kills, seed=seed)


def test_thirty_two_writers_and_four_readers_for_a_minute_lose_nothing(tmp_path):
    """The server is killed every ten seconds or so, and always has to get somewhere before the next time."""
    chance = random.Random(1)
    with running_server(tmp_path / "data") as server:
        load = Load(server, num_writers=32, num_readers=4)
        with load.running():
            for _ in range(6):
                load.stop.wait(chance.uniform(8, 12))
                server.kill()
                server.start()
                load.reach(min(load.acknowledged) + BATCH)
        load.check()
