"""`SyvainTarget`: the Metrics target, made of a client, a spool and a sender."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from typing import TYPE_CHECKING

from runtime.errors import Rejected
from runtime.events.kinds import Metric, Open
from runtime.events.limits import MAX_BATCH_EVENTS
from runtime.events.syvain.client import MetricsClient, Refusal, Trouble
from runtime.events.syvain.folders import check_folder, find_folder
from runtime.events.syvain.sender import Pace, Sender
from runtime.events.syvain.spool import Segments, Spool
from runtime.events.syvain.wire import line_head, spool_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from runtime.events.kinds import Event
    from runtime.events.syvain.settings import MetricsSettings
    from runtime.events.targets import Backlog, Segment

__all__ = ["SyvainTarget"]

logger = logging.getLogger(__name__)

_NUM_CHECKS = 3
_CHECK_WITHIN_S = 5.0
"""What a start may cost when Metrics takes a connection and never answers: the run can do without it."""


class SyvainTarget:
    """Sends a run's events to a Metrics server, in the background and in order.

    `session` is the attempt's: an event's message id is `<session>.<sequence>`. `folder`, a path or an id, is
    where the experiment is put if it is in no folder yet; unset leaves it where it is. `pack` is the
    client's.
    """

    name = "syvain"

    def __init__(
        self,
        settings: MetricsSettings,
        *,
        session: str,
        folder: str | None = None,
        pace: Pace | None = None,
        timeout_s: float = 30.0,
        pack: bool | None = None,
    ) -> None:
        self._session = session
        self._head = line_head(session)
        self._folder = None if folder is None else check_folder(folder)
        self._pace = pace or Pace()
        self._client = MetricsClient(settings, timeout_s=timeout_s, pack=pack)
        self._spool = Spool()
        self._segments = Segments(self._spool, session)
        self._sender = Sender(
            self._client, self._spool, session=session, folder=self._folder, pace=self._pace
        )
        self._lost: Counter[str] = Counter()

    @property
    def dropped(self) -> Mapping[str, int]:
        """Events that Metrics refused, that it cannot hold, or that the spool had no room for."""
        return self._lost + self._sender.dropped

    @property
    def unsent(self) -> int:
        """Events that Metrics has neither taken nor refused."""
        return self._sender.num_unsent

    @property
    def url(self) -> str | None:
        """The experiment's page; unset until Metrics has opened it."""
        return self._sender.url

    def check(self) -> None:
        """Ask Metrics whether the key is good and the folder there.

        A server that cannot be reached, or does not answer within five seconds, is only said: the run goes
        on, and its events are kept.

        Raises:
            Rejected: the key or the folder is refused, or the host is no Metrics server.
        """
        deadline = time.monotonic() + _CHECK_WITHIN_S
        try:
            self._check_key(deadline)
            if self._folder is not None:
                find_folder(self._client.folder_tree(timeout_s=_until(deadline)), self._folder)
        except Trouble as trouble:
            logger.warning(
                "Metrics at %s cannot be reached (%s): the run goes on, its events are kept and sent later",
                self._client.host,
                trouble,
            )
        except Refusal as refusal:
            raise Rejected(
                f"Metrics at {self._client.host} refuses the key ({refusal}): check O41_METRICS_API_KEY and"
                " O41_METRICS_HOST, or log in again"
            ) from refusal

    def write(self, events: Sequence[Event], lines: Sequence[bytes]) -> None:
        """Put the events into the spool, except `open`, which begins the sending, and what is not finite."""
        kept: list[bytes] = []
        sequence = self._segments.sequence(self._spool.end)
        for event, line in zip(events, lines, strict=True):
            if isinstance(event, Open):
                self._sender.start(event)
                continue
            if type(event) is not Metric:
                kept.append(spool_line(self._session, sequence, event, line))
            elif math.isfinite(event.value):
                kept.append(b"%b%d,%b" % (self._head, sequence, line[1:]))
            else:
                self._lost["not finite"] += 1
                continue
            sequence += 1
        if kept:
            self._keep(kept)

    def sync(self) -> None:
        """Do nothing: what Metrics has acknowledged is durable, and the rest goes with the checkpoint."""

    def position(self) -> int:
        """Return where in the spool the next event will stand."""
        return self._spool.end

    def backlog(self, position: int) -> Backlog:
        """Cut off what Metrics has not acknowledged up to `position` and no segment holds yet."""
        return self._segments.cut(position)

    def inherit(self, segments: Iterable[Segment]) -> None:
        """Put what an earlier attempt could not send before everything of this one."""
        num_bad = self._segments.inherit(segments)
        if num_bad:
            self._lost["unreadable"] += num_bad
        if self._spool.end:
            logger.info(
                "%d events that the checkpoint carries are sent again; what Metrics has is not stored twice",
                self._spool.end,
            )

    def close(self, timeout_s: float) -> None:
        """Send what is left, at most for `timeout_s`, and say what is not sent."""
        self._sender.close(timeout_s)
        if self.unsent:
            logger.warning(
                "%d events were not sent to Metrics; a resume sends those up to its checkpoint", self.unsent
            )

    def _keep(self, lines: Sequence[bytes]) -> None:
        num_before = self.unsent
        try:
            self._spool.append(lines)
        except OSError as error:
            if "no room" not in self._lost:
                logger.error("events for Metrics are dropped, the spool has no room: %s", error)  # noqa: TRY400 (a full disk is no mistake of ours)
            self._lost["no room"] += len(lines)
            return
        # The sender lingers for a full batch: it is woken for the first event and for the one that fills it.
        if num_before == 0 or num_before < MAX_BATCH_EVENTS <= self.unsent:
            self._sender.wake()

    def _check_key(self, deadline: float) -> None:
        delay_s = self._pace.first_delay_s
        for _ in range(_NUM_CHECKS - 1):
            try:
                return self._client.check_key(timeout_s=_until(deadline))
            except Trouble:
                if time.monotonic() + delay_s >= deadline:
                    raise
                time.sleep(delay_s)
                delay_s *= 2
        return self._client.check_key(timeout_s=_until(deadline))


def _until(deadline: float) -> float:
    """Return the seconds until `deadline`; one that is over leaves the time of a quick answer."""
    return max(0.5, deadline - time.monotonic())
