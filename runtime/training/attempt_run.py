"""A claimed attempt: its stream, its loop, and the one ending that it writes."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TextIO

from runtime.errors import RunError, Superseded, Unavailable, said_by
from runtime.events.stream import EventStream, now_ms
from runtime.training.changes import changes
from runtime.training.evaluation import Evaluator
from runtime.training.loop import Loop
from runtime.training.position import is_finished
from runtime.training.progress import progress_for
from runtime.training.saving import RunCheckpoints
from runtime.training.update import Updater

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.checkpoints.attempt import Attempt
    from runtime.checkpoints.reader import Checkpoint
    from runtime.cli.request import RunRequest
    from runtime.events.stream import StreamSummary
    from runtime.events.targets import Target
    from runtime.training.interrupts import Interrupts
    from runtime.training.prepared import Prepared

__all__ = ["AttemptRun", "Summary"]

_FLUSH_S = 30.0
"""How long a run that ended by itself waits for Metrics; what a checkpoint carries a resume still sends."""

_CARRIED_FLUSH_S = 5.0
"""The same after a signal, when a checkpoint carries what Metrics has not taken: a machine may be waiting."""

_SETTLE_S = 20.0

_LAST_SHOWN_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The line that `--json` prints. `checkpoint` and `url` are null where there is none.

    `status` is `done`, `interrupted`, `failed` or `superseded`; `seconds` is the whole process's time so
    far; `dropped` counts events that a target could not take, `unsent` those that Metrics has not taken yet.
    """

    slug: str
    status: str
    attempt: int
    first_step: int
    last_step: int
    steps: int
    checkpoint: str | None
    url: str | None
    seconds: float
    dropped: int
    unsent: int


class AttemptRun:
    """One attempt after its claim: whatever happens from here on, its ending is written."""

    def __init__(
        self,
        request: RunRequest,
        prepared: Prepared,
        *,
        attempt: Attempt | None,
        targets: Sequence[Target],
        interrupts: Interrupts,
        answer: TextIO,
    ) -> None:
        self._answer = answer
        self._request = request
        self._prepared = prepared
        self._experiment = prepared.experiment
        self._position = prepared.position
        self._first_step = prepared.position.step
        self._attempt = attempt
        self._checkpoint = attempt.checkpoint if attempt else None
        self._interrupts = interrupts
        self._stream = EventStream(targets)
        self._progress = progress_for(prepared.experiment.steps, sys.stderr)
        self._checkpoints: RunCheckpoints | None = None
        self._is_said_interrupted = False

    def execute(self, *, started: float) -> int:
        """Train, end, and return the exit code; `started` is the monotonic time at which the work began."""
        try:
            status, code = self._train()
        except Superseded as error:
            _log.error("%s", error)
            status, code = "superseded", error.exit_code
        except Unavailable as error:
            _log.error("%s", error)
            status, code = "interrupted", error.exit_code
        except BaseException as error:  # noqa: BLE001 - whatever the file raises is the run's end, an exit too
            status, code = self._failed(error)
        finally:
            # The last step's loss is shown by the thread that writes it.
            self._stream.catch_up(timeout_s=min(_LAST_SHOWN_S, self._interrupts.time_left_s()))
            with suppress(OSError):  # nobody reads standard error any more: the end is written all the same
                self._progress.close()
        return self._end(status, code, started)

    def _train(self) -> tuple[str, int]:
        self._open()
        if is_finished(self._position, self._experiment):
            _log.info("%s is finished at step %d: nothing to train", self._request.slug, self._position.step)
            self._stream.done(self._request.slug)
            return "done", 0
        if self._checkpoint is not None:
            self._resume(self._checkpoint)
        loop = self._loop()
        with suppress(OSError):
            self._progress.started(self._position.step)
        if not loop.run():
            return self._interrupted()
        if self._checkpoints is not None:
            self._checkpoints.finish(self._position)
        self._stream.done(self._request.slug)
        return "done", 0

    def _open(self) -> None:
        if self._attempt is not None:
            self._stream.inherit(self._attempt.segments())
        self._stream.open(self._prepared.identity.open(self._request.slug, ts_ms=now_ms()))

    def _resume(self, checkpoint: Checkpoint) -> None:
        """Take over the state, and say from where the run goes on and what moved since."""
        self._prepared.restore(checkpoint)
        changed = changes(checkpoint.data["identity"], self._prepared.identity.metadata())
        text = "\n".join([f"resumed from {checkpoint.path}", *changed])
        metadata = {"checkpoint": checkpoint.path, "changed": changed}
        self._stream.annotate(self._position.step, text, metadata)
        assert self._attempt is not None
        # A second copy of the whole state must not stay in memory for as long as the run lasts.
        self._checkpoint = self._attempt.checkpoint = replace(checkpoint, tensors={})

    def _loop(self) -> Loop:
        prepared, model = self._prepared, self._prepared.compiled()
        if self._attempt is not None:
            self._checkpoints = RunCheckpoints(
                self._experiment,
                attempt=self._attempt,
                saver=self._attempt.saver(
                    expected_bytes=prepared.state.expected_bytes(),
                    keep_last=self._experiment.keep_last,
                    keep_every=self._experiment.keep_every,
                    pin_memory=prepared.device.type == "cuda",
                ),
                state=prepared.state,
                stream=self._stream,
                interrupts=self._interrupts,
                about=prepared.about(),
            )
        update = Updater(
            self._experiment,
            model=model,
            device=prepared.device,
            precision=prepared.precision,
            lull=self._stream.lull,
        )
        evaluate = Evaluator(
            self._experiment,
            model=model,
            device=prepared.device,
            precision=prepared.precision,
            should_stop=self._interrupts.asked,
        )
        return Loop(
            self._experiment,
            position=self._position,
            update=update,
            evaluate=evaluate,
            stream=self._stream,
            interrupts=self._interrupts,
            progress=self._progress,
            checkpoints=self._checkpoints,
            held_step=self._checkpoint.step if self._checkpoint else None,
        )

    def _interrupted(self) -> tuple[str, int]:
        """Say it, save, and leave by the signal's exit code; by 75 if what was promised is not stored."""
        code = self._say_interrupted()
        if self._checkpoints is not None:
            try:
                self._checkpoints.finish(self._position)
            except Unavailable as error:
                _log.error("%s", error)
                code = code if self._interrupts.insisted else error.exit_code
        return "interrupted", code

    def _say_interrupted(self) -> int:
        """Say it once: a state that cannot be captured fails after that. Return the signal's exit code."""
        name, step = self._interrupts.signal_name, self._position.step
        if not self._is_said_interrupted:
            self._stream.annotate(step, f"interrupted by {name} at step {step}", {"signal": name})
        self._is_said_interrupted = True
        return 128 + signal.Signals[name]

    def _failed(self, error: BaseException) -> tuple[str, int]:
        """Write the failure, or the signal that caused it: that can reach a loader's workers first."""
        _log.error("step %d failed", self._position.step, exc_info=error)
        if self._interrupts.asked():
            code = self._say_interrupted()
            self._settle()
            return "interrupted", Unavailable.exit_code if self._interrupts.loses_work else code
        self._settle()
        self._stream.fail(self._position.step, said_by(error))
        return "failed", 1

    def _settle(self) -> None:
        """A save in flight may still count; how it ends changes nothing any more."""
        if self._checkpoints is not None:
            try:
                self._checkpoints.settle(timeout_s=_SETTLE_S)
            except Exception:  # noqa: BLE001 - the run's own ending is what is told
                _log.warning("the last save failed", exc_info=True)

    def _end(self, status: str, code: int, started: float) -> int:
        code = self._interrupts.exit_code = self._write_end(status, code)
        if self._checkpoints is not None:
            self._checkpoints.close()
        longest = _CARRIED_FLUSH_S if status == "interrupted" and self._checkpoints else _FLUSH_S
        summary = self._stream.close(timeout_s=min(longest, self._interrupts.time_left_s()))
        if self._request.json:
            self._print(self._summary(status, summary, time.monotonic() - started))
        _log.info("%s: %s at step %d", self._request.slug, status, self._position.step)
        return code

    def _print(self, summary: Summary) -> None:
        try:
            self._answer.write(json.dumps(asdict(summary), ensure_ascii=False, separators=(",", ":")) + "\n")
            self._answer.flush()
        except OSError as error:
            _log.error("the summary could not be printed: %s", error)

    def _write_end(self, status: str, code: int) -> int:
        """Write into the record how the attempt ended; the events and the exit code stand without it."""
        if self._attempt is None or status == "superseded":
            return code
        try:
            self._attempt.end(status, self._position.step)
        except RunError as error:
            _log.error("the end is not in the run record: %s", error)
            return error.exit_code if isinstance(error, Superseded) else code
        return code

    def _summary(self, status: str, stream: StreamSummary, seconds: float) -> Summary:
        newest = self._checkpoints.newest if self._checkpoints else None
        return Summary(
            slug=self._request.slug,
            status=status,
            attempt=self._attempt.number if self._attempt else 1,
            first_step=self._first_step,
            last_step=self._position.step,
            steps=self._experiment.steps,
            checkpoint=newest or (self._checkpoint.path if self._checkpoint else None),
            url=stream.url,
            seconds=round(seconds, 3),
            dropped=stream.num_dropped,
            unsent=stream.unsent,
        )
