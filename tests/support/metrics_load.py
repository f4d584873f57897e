"""Writers that load the real Metrics server while it is killed: the public collector and our own sender."""

from __future__ import annotations

import atexit
import random
import threading
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from syvain_metrics_collector import Collector

from runtime.events.kinds import Open
from runtime.events.stream import EventStream
from runtime.events.syvain.sender import Pace
from runtime.events.syvain.settings import MetricsSettings
from runtime.events.syvain.target import SyvainTarget
from tests.support.metrics_server import MetricsClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.metrics_server import MetricsServer

__all__ = ["CollectorWriter", "SenderWriter", "kill_under"]

_PATIENCE_S = 600.0
"""To deliver what piled up: on a busy machine a server takes seconds to start, and a campaign minutes."""
_QUICK = Pace(linger_s=0.005, heartbeat_s=25, first_delay_s=0.02, longest_delay_s=0.1)


class _Writer(threading.Thread, ABC):
    """Tells one point a step until it is stopped, then waits until all of it is acknowledged."""

    def __init__(self, slug: str) -> None:
        super().__init__(daemon=True)
        self.slug = slug
        self.enough = threading.Event()
        self.told = 0
        self.lost: Any = None

    def run(self) -> None:
        while not self.enough.wait(0.01):  # a thousand a second: the collector keeps 100,000 while it waits
            for _ in range(10):
                self.tell(self.told)
                self.told += 1
        self.finish()

    @abstractmethod
    def tell(self, step: int) -> None:
        """Hand over the point of one step."""

    @abstractmethod
    def finish(self) -> None:
        """Return once everything that was told is acknowledged."""


class CollectorWriter(_Writer):
    """The public collector."""

    def __init__(self, server: MetricsServer, slug: str) -> None:
        super().__init__(slug)
        self._collector = Collector(
            server.key, host=server.url, max_batch_items=50, flush_delay_seconds=0.005
        )
        atexit.unregister(self._collector._on_exit)
        self._experiment = self._collector.experiment(slug)

    def tell(self, step: int) -> None:
        self._experiment.metric("m", step + 0.5, step)

    def finish(self) -> None:
        result = self._experiment._flush(_PATIENCE_S)
        self.lost = result.pending + result.dropped and result
        self._collector._on_exit()


class SenderWriter(_Writer):
    """The event stream of a run of ours."""

    def __init__(self, server: MetricsServer, slug: str) -> None:
        super().__init__(slug)
        settings = MetricsSettings(server.url, server.key)
        target = SyvainTarget(settings, session=uuid.uuid4().hex, pace=_QUICK, timeout_s=10)
        self._stream = EventStream([target])
        self._stream.open(Open(1, slug, "d", {}))

    def tell(self, step: int) -> None:
        self._stream.metrics(step, lambda: [("m", step + 0.5, {})])

    def finish(self) -> None:
        self.lost = self._stream.close(timeout_s=_PATIENCE_S).num_dropped


def kill_under(server: MetricsServer, writers: Sequence[_Writer], *, kills: int, seed: int) -> None:
    """Kill and start the server again and again under writers; all they told must be there once."""
    chance, pause = random.Random(seed), threading.Event()
    for writer in writers:
        writer.start()
    for _ in range(kills):
        pause.wait(chance.uniform(0.02, 0.4))  # the moment is what is drawn, not waited for
        server.kill()
        pause.wait(chance.uniform(0, 0.1))
        server.start()
    for writer in writers:
        writer.enough.set()
    for writer in writers:
        writer.join()
    _check(server, writers, seed)


def _check(server: MetricsServer, writers: Sequence[_Writer], seed: int) -> None:
    """Every point is there exactly once, in the order in which it was told."""
    client = MetricsClient(server.url, server.key)
    placed = client.data("foldertree.read")["experiments"]
    for writer in writers:
        assert (writer.lost, writer.told > 0) == (0, True), (seed, writer.slug, writer.lost)
        (uid,) = [one["experimentId"] for one in placed if one["slug"] == writer.slug]
        rows = [(step, value) for step, _, value in client.points(uid)["m", ()]]
        assert rows == [(step, step + 0.5) for step in range(writer.told)], (seed, writer.slug)
    client.close()
