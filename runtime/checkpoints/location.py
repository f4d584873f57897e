"""One run's location: finding the checkpoint to go on from, and claiming the run."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runtime.checkpoints.record import (
    AttemptEntry,
    CheckpointEntry,
    Moved,
    RefusedEntry,
    RunRecord,
    read_record,
    write_record,
)
from runtime.checkpoints.store import Conflict, Store, require_conditional_writes
from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runtime.checkpoints.attempt import Attempt
    from runtime.checkpoints.reader import Checkpoint

__all__ = ["Found", "Location", "Resume", "now_ms", "open_location", "open_store"]

Resume = Literal["auto", "never"] | int
"""`auto`: the newest checkpoint that verifies; `never`: step 0; a number: the checkpoint of that step."""

_log = logging.getLogger(__name__)


def now_ms() -> int:
    """The time now, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def open_location(spec: str, env: Mapping[str, str]) -> Location:
    """The location that `spec` names: `s3://bucket/prefix` or a path. Touches nothing.

    `env` holds the `AWS_*` settings of S3.

    Raises:
        Rejected: `spec` names no location.
        Unavailable: its path cannot be looked at.
    """
    return Location(open_store(spec, env))


def open_store(spec: str, env: Mapping[str, str]) -> Store:
    """The store that `spec` names; see `open_location`."""
    scheme, colon, rest = spec.partition("://")
    if scheme.lower() == "s3" and colon:
        from runtime.checkpoints.s3 import S3Store

        bucket, _, prefix = rest.partition("/")
        return S3Store(bucket, prefix.strip("/"), env)
    if colon or not spec.strip():
        raise Rejected(f"--location takes a path or s3://bucket/prefix, got {spec!r}")
    from runtime.checkpoints.local import LocalStore

    try:
        root = Path(os.path.abspath(Path(spec).expanduser()))  # noqa: PTH100  (resolve() would follow links)
        nearest = next(path for path in (root, *root.parents) if path.exists())
        is_folder = nearest.is_dir()
    except (RuntimeError, ValueError) as error:  # nobody's home, no path
        raise Rejected(f"--location {spec} cannot be reached: {error}") from error
    except OSError as error:
        # Else not ours to look at, or a mount that is dead: as any other location that refuses access.
        kind = Rejected if error.errno == errno.ENAMETOOLONG else Unavailable
        raise kind(f"--location {spec} cannot be reached: {error}") from error
    if not is_folder:
        raise Rejected(f"--location {spec}: {nearest} is a file; name a directory, or one that can be made")
    return LocalStore(root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What stands at a location. `record` unset: no run yet. `checkpoint` unset: the run begins at step 0.

    `refused` are the checkpoints that did not verify, `passed` those that a rewind leaves behind; a claim
    takes both out of the record.
    """

    slug: str
    record: RunRecord | None
    etag: str | None
    checkpoint: Checkpoint | None
    refused: tuple[RefusedEntry, ...]
    passed: tuple[CheckpointEntry, ...]


class Location:
    """Where one run's checkpoints are. It may be used from any thread and lives as long as its process."""

    def __init__(self, store: Store, *, clock_ms: Callable[[], int] = now_ms) -> None:
        self.store = store
        self._clock_ms = clock_ms

    @property
    def url(self) -> str:
        """The location as people write it: `/path` or `s3://bucket/prefix`."""
        return self.store.url

    @property
    def is_local(self) -> bool:
        """Whether only this host can reach it."""
        return not self.url.startswith("s3://")

    def record(self) -> RunRecord | None:
        """The run record as it is now, or None where no run has begun; raises like `find`."""
        found = read_record(self.store)
        return found[0] if found else None

    def find(self, *, slug: str, resume: Resume = "auto") -> Found:
        """Read the record, and the checkpoint to go on from, all of it; change nothing.

        A checkpoint that does not verify is refused, in the log too, and the next older one is read.

        Raises:
            Rejected: another slug's run is here, or there is no checkpoint of the step asked for.
            Unavailable: the location cannot be reached.
        """
        found = read_record(self.store)
        if found is None:
            self._require_empty(resume)
            return Found(slug=slug, record=None, etag=None, checkpoint=None, refused=(), passed=())
        record, etag = found
        if record.slug != slug:
            raise Rejected(
                f"{self.url} holds the run of slug {record.slug}, not {slug}: name another --location"
            )
        candidates = sorted(record.checkpoints, key=lambda entry: entry.order, reverse=True)
        passed: tuple[CheckpointEntry, ...] = ()
        if resume == "never":
            candidates, passed = [], tuple(candidates)
        elif resume != "auto":
            passed = tuple(entry for entry in candidates if entry.step > resume)
            candidates = self._of_step(resume, candidates)
        checkpoint, refused = self._newest_that_verifies(record, candidates)
        if checkpoint is None and isinstance(resume, int):
            raise Rejected(f"the checkpoint of step {resume} at {self.url} is damaged: {refused[-1].reason}")
        return Found(
            slug=slug, record=record, etag=etag, checkpoint=checkpoint, refused=refused, passed=passed
        )

    def claim(self, found: Found, *, session: str) -> Attempt:
        """Make this process the newest attempt, which alone may publish.

        `session` is 32 hex digits drawn for this attempt.

        Raises:
            Moved: the record changed since it was found: find again.
            Unavailable: the location cannot be written, or ignores conditional writes.
        """
        from runtime.checkpoints.attempt import Attempt

        if found.record is None:
            require_conditional_writes(self.store, f"tmp/probe-{session}")
        record = self._claimed(found, session)
        try:
            write_record(self.store, record, etag=found.etag)
        except Conflict as error:
            # A try whose reply was lost may have been the one that changed it.
            now = self.record()
            if now != record:
                raise Moved(f"the record of {self.url} changed while it was claimed: find again") from error
        return Attempt(self.store, record, found.checkpoint, clock_ms=self._clock_ms)

    def _claimed(self, found: Found, session: str) -> RunRecord:
        before = found.record
        # By manifest: one attempt can have saved one step twice, and only one of the two be damaged.
        gone = {entry.checkpoint.manifest for entry in found.refused} | {e.manifest for e in found.passed}
        return RunRecord(
            slug=found.slug,
            attempt=AttemptEntry(
                number=before.attempt.number + 1 if before else 1,
                session=session,
                host=socket.gethostname(),
                pid=os.getpid(),
                started_ms=self._clock_ms(),
            ),
            checkpoints=tuple(e for e in before.checkpoints if e.manifest not in gone) if before else (),
            refused=(before.refused if before else ()) + found.refused,
        )

    def _newest_that_verifies(
        self, record: RunRecord, candidates: list[CheckpointEntry]
    ) -> tuple[Checkpoint | None, tuple[RefusedEntry, ...]]:
        from runtime.checkpoints.format import Damaged
        from runtime.checkpoints.reader import read_checkpoint

        refused: list[RefusedEntry] = []
        for entry in candidates:
            try:
                return read_checkpoint(self.store, entry), tuple(refused)
            except Damaged as error:
                reason = str(error)
            _log.error("refused the checkpoint of step %s, attempt %s: %s", entry.step, entry.attempt, reason)
            refused.append(
                RefusedEntry(
                    checkpoint=entry,
                    reason=reason,
                    by_attempt=record.attempt.number + 1,
                    refused_ms=self._clock_ms(),
                )
            )
        if refused:
            _log.error("no checkpoint at %s verifies: the run starts over at step 0", self.url)
        return None, tuple(refused)

    def _of_step(self, step: int, candidates: list[CheckpointEntry]) -> list[CheckpointEntry]:
        chosen = [entry for entry in candidates if entry.step == step]
        if not chosen:
            raise Rejected(f"no checkpoint of step {step} at {self.url}: {_steps(candidates)}")
        return chosen

    def _require_empty(self, resume: Resume) -> None:
        if isinstance(resume, int):
            raise Rejected(f"no checkpoint of step {resume} at {self.url}: no run has begun there")
        orphan = next((found for found in self.store.list("step-")), None)
        if orphan is not None and resume == "auto":
            raise Rejected(
                f"{self.url} holds checkpoints but no run.json: rebuild it with "
                f"`python -m runtime.checkpoints.rebuild {self.url}`, or start over with --resume never"
            )


def _steps(entries: list[CheckpointEntry]) -> str:
    steps = sorted({entry.step for entry in entries})
    return f"there are those of steps {', '.join(map(str, steps))}" if steps else "there are none"
