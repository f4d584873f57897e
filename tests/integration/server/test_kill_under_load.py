"""kill -9 of the server under the public collector and our own sender: what they told is there once."""

from tests.support.metrics_load import CollectorWriter, SenderWriter, kill_under
from tests.support.metrics_server import running_server


def test_what_collector_and_sender_told_is_there_once_and_in_order(tmp_path):
    with running_server(tmp_path / "data") as server:
        writers = [
            kind(server, f"{kind.__name__}-{n}") for kind in (CollectorWriter, SenderWriter) for n in "ab"
        ]
        kill_under(server, writers, kills=5, seed=1)
