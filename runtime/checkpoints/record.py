"""The run record, `run.json`: which attempt owns a run, and which checkpoints count. It decides."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from runtime.checkpoints.store import Conflict, Missing
from runtime.errors import Rejected, Superseded, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.checkpoints.store import Store

__all__ = [
    "RECORD_KEY",
    "VERSION",
    "AttemptEntry",
    "CheckpointEntry",
    "EndEntry",
    "Moved",
    "RefusedEntry",
    "RunRecord",
    "SegmentEntry",
    "change_record",
    "read_record",
    "write_record",
]

RECORD_KEY = "run.json"
VERSION = 1
READS = 3  # of one that does not verify: the wire may be at fault
SWAPS = 20  # tries of one compare-and-swap; each lost race means that somebody else made progress

_log = logging.getLogger(__name__)


class Moved(Unavailable):
    """The record changed between finding and claiming: find again."""


class SegmentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Events that Metrics had not acknowledged, stored at `segments/<name>`."""

    name: str
    size_bytes: int
    blake3: str


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that counts. `manifest` is its key at the location, and names all its other files."""

    step: int
    attempt: int
    published_ms: int
    manifest: str
    manifest_blake3: str
    segments: tuple[SegmentEntry, ...] = ()

    @property
    def order(self) -> tuple[int, int]:
        """Newest last: by step, then by attempt. Never by a file's time."""
        return self.step, self.attempt


class RefusedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that did not verify, and why. It counts for nothing and nothing deletes it."""

    checkpoint: CheckpointEntry
    reason: str
    by_attempt: int
    refused_ms: int


class AttemptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempt, which owns the run. `session` is what tells two claims of one number apart."""

    number: int
    session: str
    host: str
    pid: int
    started_ms: int


class EndEntry(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended: `done`, `interrupted` or `failed`."""

    attempt: int
    status: str
    step: int
    ended_ms: int


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record as it stands at the location. `ended` unset: the attempt lives, or died without a word."""

    version: int = VERSION
    slug: str
    attempt: AttemptEntry
    checkpoints: tuple[CheckpointEntry, ...] = ()
    refused: tuple[RefusedEntry, ...] = ()
    ended: EndEntry | None = None

    @property
    def newest(self) -> CheckpointEntry | None:
        """The newest checkpoint that counts, or None."""
        return max(self.checkpoints, key=lambda entry: entry.order, default=None)


def read_record(store: Store) -> tuple[RunRecord, str] | None:
    """Return the record and its etag, or None where there is none.

    Raises:
        Rejected: what stands there is no record, or one of a newer version.
        Unavailable: the store cannot be reached.
    """
    for tries_left in reversed(range(READS)):
        try:
            data, etag = store.get(RECORD_KEY)
        except Missing:
            return None
        try:
            return _decode(data, store.url), etag
        except Rejected as error:
            if not tries_left:
                raise
            _log.warning("reading again: %s", error)
    raise AssertionError("unreachable")


def write_record(store: Store, record: RunRecord, *, etag: str | None) -> str:
    """Write the record if it is still the one of `etag` (None: if there is none); return the new etag.

    Raises:
        Conflict: it is another one by now.
    """
    body = msgspec.json.encode(record)
    whole = b'%b,"blake3":"%b"}' % (body[:-1], blake3(body).hexdigest().encode())
    return store.put_if(RECORD_KEY, msgspec.json.format(whole, indent=1) + b"\n", etag=etag)


def _decode(data: bytes, url: str) -> RunRecord:
    """Decode and verify: one flipped bit must not drop a good checkpoint, or pass for a newer attempt.

    The digest is of the content, not of its layout; a record written by hand may have none.
    """
    where = f"{url}/{RECORD_KEY}"
    way_out = f"move it away and rebuild it with `python -m runtime.checkpoints.rebuild {url}`"
    try:
        raw: Any = msgspec.json.decode(data)
        version = raw["version"] if isinstance(raw, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise Rejected(f"{where} has version {version}, this Slugline reads {VERSION}: use a newer one")
        record = msgspec.convert(raw, RunRecord)
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"{where} is no run record ({error}): if the run is yours, {way_out}") from error
    digest = blake3(msgspec.json.encode(record)).hexdigest()
    if raw.get("blake3", digest) != digest:
        raise Rejected(f"{where} is damaged: its BLAKE3 is {digest[:12]}, not what it says: {way_out}")
    return record


def change_record(store: Store, session: str, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
    """Apply `change` by compare-and-swap, as the attempt of `session`.

    `change` must be idempotent: a lost reply makes it run on a record that already holds its effect.

    Raises:
        Superseded: a newer attempt owns the record.
        Unavailable: the store cannot be reached, or the record is gone or damaged.
    """
    for _ in range(SWAPS):
        record, etag = _owned(store, session)
        changed = change(record)
        if changed == record:
            return record
        try:
            write_record(store, changed, etag=etag)
        except Conflict:
            continue
        return changed
    raise Unavailable(f"{store.url}/{RECORD_KEY} kept changing under {SWAPS} swaps: what else writes there?")


def _owned(store: Store, session: str) -> tuple[RunRecord, str]:
    try:
        found = read_record(store)
    except Rejected as error:  # the user's mistake at a start; under a run it is the surroundings
        raise Unavailable(str(error)) from error
    if found is None:
        raise Unavailable(
            f"{store.url}/{RECORD_KEY} is gone: something else deleted it while the run lived; "
            f"rebuild it with `python -m runtime.checkpoints.rebuild {store.url}`"
        )
    record, etag = found
    if record.attempt.session != session:
        raise Superseded(
            f"attempt {record.attempt.number} on {record.attempt.host} owns {store.url} now: "
            "this one publishes nothing more"
        )
    return record, etag
