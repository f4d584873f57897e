"""Thirty-two writers and eight readers at once, the server killed in between."""

from tests.support.metrics_server import running_server
from tests.support.shared_load import BATCH, Load


def test_nothing_is_lost_and_no_reader_sees_a_revision_ahead_of_its_points(tmp_path):
    with running_server(tmp_path / "data") as server:
        load = Load(server, num_writers=32, num_readers=8)
        with load.running():
            load.reach(2 * BATCH)
            server.kill()
            server.start()
            load.reach(6 * BATCH)
        load.check()
