"""Saving beside training: a snapshot, digests and uploads in the background, then one line in the record."""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from blake3 import blake3

from runtime.checkpoints.format import (
    FORMAT,
    SHARD_BYTES,
    FileEntry,
    Layout,
    Shard,
    encode_json,
    step_folder,
)
from runtime.checkpoints.parallel import each
from runtime.checkpoints.record import CheckpointEntry, SegmentEntry
from runtime.checkpoints.retention import Retention, unneeded_segments
from runtime.checkpoints.snapshot import Snapshots
from runtime.checkpoints.sweep import SEGMENTS, file_token, purge
from runtime.errors import RunError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from runtime.checkpoints.attempt import Attempt
    from runtime.events.targets import Backlog

__all__ = ["Published", "Saver"]

WORKERS = 4
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)  # between the tries of one operation; then the save has failed
LOOK_EVERY_S = 0.05

_log = logging.getLogger(__name__)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A checkpoint that counts from now on.

    `seconds` runs from the first tensor leaving the device to the last byte stored.
    """

    step: int
    attempt: int
    path: str
    seconds: float
    size_bytes: int
    published_ms: int


class _Abandoned(Exception):
    """Nobody waits for this save any more."""


@dataclass(slots=True, kw_only=True)
class _Save:
    """One save on its way. `settled`: published or failed; `tidied`: what it made superfluous is gone too."""

    step: int
    number: int
    layout: Layout
    data: bytes
    started_s: float
    before_publish: Callable[[], Backlog]
    on_published: Callable[[Published], None]
    error: BaseException | None = None
    record_untouched: bool = True
    abandoned: threading.Event = field(default_factory=threading.Event)
    settled: threading.Event = field(default_factory=threading.Event)
    tidied: threading.Event = field(default_factory=threading.Event)


class Saver:
    """Saves one checkpoint at a time for one attempt. Made by `Attempt.saver`, closed at the attempt's end.

    `expected_bytes` is the size of all tensors of a checkpoint: that much memory is made ready at once, in
    the background, and is all that saving takes. `pin_memory` is for tensors on a GPU. `backoff_s` are the
    pauses between the tries of one operation.
    """

    def __init__(
        self,
        attempt: Attempt,
        *,
        retention: Retention,
        expected_bytes: int,
        pin_memory: bool = False,
        shard_bytes: int = SHARD_BYTES,
        workers: int = WORKERS,
        backoff_s: Sequence[float] = BACKOFF_S,
    ) -> None:
        self._attempt = attempt
        self._store = attempt.store
        self._retention = retention
        self._snapshots = Snapshots(expected_bytes=expected_bytes, pin=pin_memory, shard_bytes=shard_bytes)
        self._workers = workers
        self._backoff_s = tuple(backoff_s)
        self._saves = 0
        self._save: _Save | None = None
        loaded = attempt.checkpoint
        self._segments = {segment.name: segment for segment in (loaded.entry.segments if loaded else ())}
        self._unstored: dict[str, bytes] = {}

    @property
    def is_busy(self) -> bool:
        """Whether the last save is still on its way: `save` would take nothing now."""
        return self._save is not None and not self._save.tidied.is_set()

    def save(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        data: Mapping[str, Any],
        before_publish: Callable[[], Backlog],
        on_published: Callable[[Published], None],
    ) -> bool:
        """Copy the state and return; the rest happens in the background, and a failure there is logged.

        False: the last save is still on its way; ask again at the next boundary. `before_publish` runs once
        the tensors are stored, and makes durable what must not be older than the checkpoint;
        `on_published` runs when the record names it. Both run in the saver's thread.

        Raises:
            ValueError: a tensor or a value that no checkpoint can keep.
            Superseded: a newer attempt owns the run.
        """
        if self.is_busy:
            return False
        text = encode_json(dict(data))
        layout, started_s = self._snapshots.take(tensors)
        self._attempt.check()  # after the copy: what it starts in the background would slow that down
        self._saves += 1
        self._save = _Save(
            step=step,
            number=self._saves,
            layout=layout,
            data=text,
            started_s=started_s,
            before_publish=before_publish,
            on_published=on_published,
        )
        threading.Thread(target=self._run, args=(self._save,), name="checkpoint-save", daemon=True).start()
        return True

    def wait(self, *, timeout_s: float | None = None, give_up: threading.Event | None = None) -> None:
        """Wait for the save on its way; return at once when there is none or it was published.

        `timeout_s` unset waits as long as the tries take. `give_up` set, by a second signal say, ends
        the wait and the save.

        Raises:
            Unavailable: it could not be stored, or not in time.
            Superseded: a newer attempt owns the run.
            Exception: whatever else the save raised.
        """
        save = self._save
        if save is None:
            return
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for event in (save.settled, save.tidied):
            reason = _wait(event, deadline_s, give_up)
            if reason and not save.settled.is_set():
                save.abandoned.set()
                raise Unavailable(f"the checkpoint of step {save.step} is not stored: {reason}")
        if save.error is not None:
            raise save.error

    def close(self) -> None:
        """Let the memory go. A save still on its way is abandoned."""
        if self._save is not None:
            self._save.abandoned.set()
            if not self._save.tidied.is_set():
                return  # its threads still read the buffer, which goes with them
        self._snapshots.close()

    def _run(self, save: _Save) -> None:
        try:
            superfluous = self._publish(save)
            save.settled.set()
            superfluous()
        except _Abandoned:
            save.error = Unavailable(f"the checkpoint of step {save.step} was given up")
        except RunError as error:
            save.error = error
            _log.error("the checkpoint of step %s is not stored: %s", save.step, error)
        except Exception as error:  # noqa: BLE001  (raised by wait(); a save never ends the run by itself)
            save.error = error
            _log.exception("the checkpoint of step %s is not stored", save.step)
        finally:
            save.settled.set()
            if save.error is not None and save.record_untouched and not save.abandoned.is_set():
                self._discard(save)
            save.tidied.set()
            _log.debug("the save of step %s is over", save.step)

    def _discard(self, save: _Save) -> None:
        """Delete the files of a save that failed before the record could name it: the disk may be full."""
        entry = CheckpointEntry(
            step=save.step,
            attempt=self._attempt.number,
            published_ms=0,
            manifest=self._manifest_key(save),
            manifest_blake3="",
        )
        purge(self._store, [entry], [])

    def _publish(self, save: _Save) -> Callable[[], None]:
        """Store everything and publish; return what deletes the files that are then superfluous."""
        files = each(
            lambda index: self._store_shard(save, index, save.layout.shards[index]),
            range(len(save.layout.shards)),
            workers=self._workers,
            name="checkpoint-write",
        )
        segments = self._store_segments(save)
        manifest = self._manifest(save, files, segments)
        key = self._manifest_key(save)
        self._persist(save, lambda: self._store.put(key, manifest))
        seconds = time.perf_counter() - save.started_s
        entry = CheckpointEntry(
            step=save.step,
            attempt=self._attempt.number,
            published_ms=self._attempt.clock_ms(),
            manifest=key,
            manifest_blake3=blake3(manifest).hexdigest(),
            segments=segments,
        )
        save.record_untouched = False
        record, dropped = self._persist(save, lambda: self._attempt.publish(entry, self._retention))
        self._segments = {segment.name: segment for segment in segments}
        size_bytes = sum(file.size_bytes for file in files)
        self._announce(save, entry, seconds, size_bytes)
        kept = [*record.checkpoints, *(refused.checkpoint for refused in record.refused)]
        return lambda: purge(self._store, dropped, unneeded_segments(dropped, kept)) if dropped else None

    def _store_shard(self, save: _Save, index: int, shard: Shard) -> FileEntry:
        view = self._snapshots.view(shard.start, shard.size_bytes)
        name = f"tensors-{file_token(self._attempt.number, save.number)}-{index:05d}.safetensors"
        digest = blake3(view).hexdigest()
        self._persist(save, lambda: self._store.put(f"{step_folder(save.step)}/{name}", view))
        return FileEntry(name=name, size_bytes=shard.size_bytes, blake3=digest)

    def _store_segments(self, save: _Save) -> tuple[SegmentEntry, ...]:
        """Store the events that this checkpoint carries; what a failed save has cut off is not forgotten."""
        backlog = save.before_publish()
        if backlog.new is not None:
            self._unstored[backlog.new.name] = backlog.new.data
        for name in list(self._unstored):
            data = self._unstored[name]
            if name in backlog.names:
                self._persist(save, lambda: self._store.put(f"{SEGMENTS}/{name}", data))  # noqa: B023  (called at once)
                digest = blake3(data).hexdigest()
                self._segments[name] = SegmentEntry(name=name, size_bytes=len(data), blake3=digest)
            del self._unstored[name]
        return tuple(self._segments[name] for name in backlog.names if name in self._segments)

    def _manifest(self, save: _Save, files: Sequence[FileEntry], segments: Sequence[SegmentEntry]) -> bytes:
        head = encode_json(
            {
                "format": FORMAT,
                "slug": self._attempt.slug,
                "attempt": self._attempt.number,
                "step": save.step,
                "started_from": self._attempt.started_from,
                "created_ms": self._attempt.clock_ms(),
                "files": files,
                "whole": dict(save.layout.whole),
                "segments": segments,
            }
        )
        return b"%b,%b:%b}\n" % (head[:-1], b'"data"', save.data)

    def _manifest_key(self, save: _Save) -> str:
        return f"{step_folder(save.step)}/manifest-{file_token(self._attempt.number, save.number)}.json"

    def _announce(self, save: _Save, entry: CheckpointEntry, seconds: float, size_bytes: int) -> None:
        published = Published(
            step=save.step,
            attempt=entry.attempt,
            path=f"{self._store.url}/{step_folder(save.step)}",
            seconds=seconds,
            size_bytes=size_bytes,
            published_ms=entry.published_ms,
        )
        try:
            save.on_published(published)
        except Exception:  # noqa: BLE001  (the checkpoint counts, whatever its listener made of that)
            _log.exception("telling of the checkpoint of step %s failed", save.step)

    def _persist(self, save: _Save, action: Callable[[], Value]) -> Value:
        for pause_s in (*self._backoff_s, None):
            if save.abandoned.is_set():
                raise _Abandoned
            try:
                return action()
            except Unavailable as error:
                if pause_s is None:
                    raise
                _log.warning("saving step %s: %s; trying again in %s s", save.step, error, pause_s)
                save.abandoned.wait(pause_s * random.uniform(0.8, 1.2))
        raise AssertionError("unreachable")


def _wait(event: threading.Event, deadline_s: float | None, give_up: threading.Event | None) -> str | None:
    """Wait for `event`; return why it was not waited for, or None."""
    while not event.wait(LOOK_EVERY_S):
        if give_up is not None and give_up.is_set():
            return "waiting for it was given up"
        if deadline_s is not None and time.monotonic() > deadline_s:
            return "the time allowed for it is over"
    return None
