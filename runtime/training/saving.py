"""Checkpoints of a run: what a save holds, when it is durable, and what it tells the stream."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from runtime.errors import Superseded, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runtime.checkpoints.attempt import Attempt
    from runtime.checkpoints.saver import Published, Saver
    from runtime.events.stream import EventStream
    from runtime.events.targets import Backlog
    from runtime.experiment.model import Experiment
    from runtime.training.interrupts import Interrupts
    from runtime.training.position import Position
    from runtime.training.state import TrainingState

__all__ = ["RunCheckpoints"]

_log = logging.getLogger(__name__)


class RunCheckpoints:
    """Saves one attempt's state and says so in its stream. Lives as long as the attempt trains."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        attempt: Attempt,
        saver: Saver,
        state: TrainingState,
        stream: EventStream,
        interrupts: Interrupts,
        about: Mapping[str, Any],
    ) -> None:
        """`about` goes into every checkpoint as it is: the identity and what is pinned."""
        self.newest: str | None = attempt.checkpoint.path if attempt.checkpoint else None
        """Where the newest checkpoint is; unset while there is none."""
        self._experiment = experiment
        self._attempt = attempt
        self._saver = saver
        self._state = state
        self._stream = stream
        self._interrupts = interrupts
        self._about = about
        self._published_step = attempt.started_from
        self._step = attempt.started_from
        self._steps = threading.Lock()  # the training thread moves on while the saver's publishes

    def offer(self, position: Position) -> bool:
        """Take the state of this boundary, unless an earlier save is still in flight.

        Raises:
            Superseded: a newer attempt owns the run.
        """
        if self._saver.is_busy:  # seen before everything is captured for nothing, at every boundary till then
            return False
        tensors, state = self._state.capture()
        data = {**position.as_data(self._experiment.stages, self._experiment.microbatches), **self._about}
        data["state"] = state
        return self._saver.save(position.step, tensors, data, self._before_publish(), self._on_published)

    def moved_on(self, step: int) -> None:
        """Note that `step` updates are done. Raises `Superseded` like `offer`."""
        with self._steps:
            self._step = step
            self._interrupts.loses_work = step != self._published_step
        self._attempt.check()

    def finish(self, position: Position) -> None:
        """Save this boundary and wait until that counts, or until the interrupts say to give up.

        Raises:
            Unavailable: it could not be stored, or not in time.
            Superseded: a newer attempt owns the run.
        """
        self.settle()
        while not self.offer(position):  # only the clearing up after the earlier save is left
            if self._interrupts.give_up.wait(0.01):
                raise Unavailable(
                    f"the checkpoint of step {position.step} is not stored: no time was left; give more with "
                    "--notice"
                )
        self._saver.wait(give_up=self._interrupts.give_up)

    def settle(self, *, timeout_s: float | None = None) -> None:
        """Wait for a save in flight; its failure is in the log, and a later checkpoint makes up for it.

        Raises:
            Superseded: a newer attempt owns the run.
        """
        try:
            self._saver.wait(timeout_s=timeout_s, give_up=self._interrupts.give_up)
        except Superseded:
            raise
        except Exception as error:  # noqa: BLE001 - the saver has logged it, with its traceback where it has one
            _log.warning("going on without an earlier checkpoint: %s", error)

    def close(self) -> None:
        """Abandon what is still in flight."""
        self._saver.close()

    def _before_publish(self) -> Callable[[], Backlog]:
        """Everything that was said up to now is durable, or carried, before the checkpoint counts."""
        mark = self._stream.mark()

        def before() -> Backlog:
            self._stream.sync(mark)
            return self._stream.backlog(mark)

        return before

    def _on_published(self, published: Published) -> None:
        with self._steps:
            self.newest, self._published_step = published.path, published.step
            self._interrupts.loses_work = self._step != published.step
        self._stream.annotate(
            published.step,
            f"checkpoint {published.path}",
            {"checkpoint": published.path, "seconds": round(published.seconds, 3)},
        )
