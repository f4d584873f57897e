"""One attempt from its request to its exit code: check, find, claim, train, end."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import uuid
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, TypeVar

from runtime.errors import Unavailable
from runtime.events.targets import parse_targets
from runtime.events.telemetry import TelemetryTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runtime.checkpoints.attempt import Attempt
    from runtime.checkpoints.location import Location
    from runtime.cli.request import RunRequest
    from runtime.events.targets import Target
    from runtime.training.interrupts import Interrupts
    from runtime.training.prepared import Prepared

__all__ = ["checked_targets", "execute"]

_CLAIM_TRIES = 20
_LOOK_EVERY_S = 0.05

Value = TypeVar("Value")

_log = logging.getLogger(__name__)


def execute(request: RunRequest, interrupts: Interrupts, *, answer: TextIO) -> int:
    """Train what `request` asks for, from its newest checkpoint on; return the process's exit code.

    To be called with `interrupts` in force, before torch is imported. `answer` gets the summary, if it is
    asked for.

    Raises:
        Rejected: the user's mistake; nothing was touched.
        Unavailable: the location cannot be reached, or a file is missing on this host; nothing was touched.
        Interrupted: a signal came before the run was claimed.
    """
    started = time.monotonic()
    session = uuid.uuid4().hex
    targets = checked_targets(request, os.environ, session=session)
    location = _location(request)  # before the file, which may change the working directory
    prepared = _prepare(request, interrupts)
    attempt = None
    if location is not None:
        attempt = _claim(location, request, prepared, interrupts, session=session)
    if not request.slug_given:  # a run that is refused has no name, and says one line only
        with suppress(OSError):  # nobody reads standard error any more: the run goes on all the same
            sys.stderr.write(f"slug: {request.slug}\n")
    if location is None:
        _log.warning("nothing of this run is kept: --location names where its checkpoints go")
    interrupts.claimed()

    from runtime.training.attempt_run import AttemptRun

    run = AttemptRun(
        request, prepared, attempt=attempt, targets=targets, interrupts=interrupts, answer=answer
    )
    return run.execute(started=started)


def checked_targets(request: RunRequest, environ: Mapping[str, str], *, session: str) -> list[Target]:
    """Return where the run's events go, the telemetry file included, each looked at and none touched.

    Raises:
        Rejected: one cannot work.
    """
    targets = parse_targets(request.metrics, environ, session=session, folder=request.folder)
    if request.telemetry is not None:
        targets.append(TelemetryTarget(request.telemetry))
    for target in targets:
        target.check()
    return targets


def _prepare(request: RunRequest, interrupts: Interrupts) -> Prepared:
    from runtime.training.prepared import Prepared

    interrupts.check()
    loaded = request.load()
    interrupts.check()
    prepared = Prepared(loaded)
    interrupts.check()
    return prepared


def _location(request: RunRequest) -> Location | None:
    if request.location is None:
        return None
    from runtime.checkpoints.location import open_location

    return open_location(request.location, os.environ)


def _claim(
    location: Location, request: RunRequest, prepared: Prepared, interrupts: Interrupts, *, session: str
) -> Attempt:
    """Find what to go on from, see that it fits, and claim the run; again when somebody was faster."""
    from runtime.checkpoints.record import Moved

    for _ in range(_CLAIM_TRIES):
        found = _unless_interrupted(
            lambda: location.find(slug=request.slug, resume=request.resume), interrupts
        )
        prepared.fit(found.checkpoint)
        try:
            return location.claim(found, session=session)
        except Moved as moved:
            _log.info("%s", moved)
    raise Unavailable(
        f"{location.url} was claimed by others {_CLAIM_TRIES} times in a row: see what starts this slug"
    )


def _unless_interrupted(work: Callable[[], Value], interrupts: Interrupts) -> Value:
    """Do what changes nothing, on a thread of its own: a signal does not wait for gigabytes to be read.

    Raises:
        Interrupted: a signal came; the work may go on until the process ends.
    """
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread below
            future.set_exception(error)

    threading.Thread(target=run, name="find", daemon=True).start()
    while not wait([future], timeout=_LOOK_EVERY_S).done:
        interrupts.check()
    interrupts.check()
    return future.result()
