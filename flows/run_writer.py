"""A run's record in a Metrics server, as the flow process that looks after the run writes it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from infra.client.api import Client, part
from infra.client.errors import Refused as SaidNo
from runtime.errors import Rejected, Unavailable
from runtime.telemetry.cursor import Cursor
from runtime.telemetry.destination import Moved, Refused, Stored, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runtime.events.syvain.settings import MetricsSettings
    from runtime.telemetry.destination import Batch

__all__ = ["MAX_RESULT_BYTES", "Record", "RunWriter", "TelemetryDestination"]

MAX_RESULT_BYTES = 262_144
"""What the server keeps of a `result.json`."""

REQUEST_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a run is made with in the server, should it have no record of it. `folder` is a path or an id.

    `files` finds what was shipped for it, as the server keeps it; unset: nothing was, or it knows already.
    `announced`: its experiment is opened, started and ended by the flow, as nobody else does.
    """

    slug: str
    kind: Literal["command", "train"]
    folder: str | None = None
    command: Sequence[str] | None = None
    tree: str | None = None
    telemetry: str | None = None
    checks: str | None = None
    files: Callable[[], Sequence[Mapping[str, Any]] | None] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    announced: bool = False


class RunWriter:
    """One run's record. Any thread may use it. `page` is where people look at it, "" until it was found.

    `is_replaced` says whether another flow process has taken the run from this one; unset: none has.

    Every method raises `Trouble` when the server cannot be reached or cannot answer now, and `Refused` when
    it will not take it, however often it is sent.
    """

    def __init__(
        self, settings: MetricsSettings, record: Record, *, is_replaced: Callable[[], bool] = lambda: False
    ) -> None:
        self._client = Client(settings, timeout_s=REQUEST_S)
        self._record, self._is_replaced = record, is_replaced
        self._path: str | None = None
        self.page = ""
        self._newest = 0
        self._begun = 0
        self._ahead = 0
        self._closed = False
        self._lock = threading.Lock()

    def begin(self, number: int) -> None:
        """Say that attempt `number` begins; what is told of the one before is what is left of it."""
        with self._lock:
            self._begun = number

    def tell(self, said: Mapping[str, Any]) -> None:
        """Change what the record says; `attempt` in it is by our count."""
        with self._lock:
            path = self._found()
            body = dict(said)
            if (number := said.get("attempt")) is not None:
                body["attempt"] = self._counted(number)
            self._asked(lambda: self._client.patch(path, body))

    def tell_from_outside(self, said: Mapping[str, Any]) -> None:
        """Change what the record says, as no attempt; refused if one has begun since the record was found."""
        with self._lock:
            path = self._found()
            self._asked(lambda: self._client.patch(path, {**said, "attempt": self._newest}))

    def cursor(self) -> Stored:
        """Return how far the run's telemetry is stored."""
        with self._lock:
            path = self._found()
        found = self._asked(lambda: self._client.get(f"{path}/telemetry/cursor"))
        try:
            place = Cursor.from_json(found["cursor"])
        except ValueError as error:
            raise Refused(str(error)) from error
        return Stored(
            last_seq=found["last_seq"],
            points=found["points"],
            keys=found["keys"],
            dropped=found["dropped"],
            cursor=place,
        )

    def append(self, number: int, batch: Batch) -> None:
        """Store points of attempt `number`.

        Raises:
            Moved: they do not follow what is stored.
        """
        with self._lock:
            path, attempt = self._found(), self._counted(number)
        body = {
            "attempt": attempt,
            "after_seq": batch.after_seq,
            "points": batch.points,
            "dropped": dict(batch.dropped),
            "cursor": batch.cursor.to_json(),
        }
        self._asked(lambda: self._client.post(f"{path}/telemetry", body))

    def log_offset(self, number: int) -> int:
        """Return how many bytes of the log of attempt `number` are stored."""
        with self._lock:
            path, attempt = self._found(), self._counted(number)
        return int(self._asked(lambda: self._client.get(f"{path}/log/cursor", attempt=attempt))["offset"])

    def append_log(self, number: int, offset: int, text: str) -> int:
        """Append to the log of attempt `number` what comes after `offset` bytes; return how many are stored.

        Where that is another place, nothing is stored: go on from what is returned.
        """
        with self._lock:
            path, attempt = self._found(), self._counted(number)
        body = {"attempt": attempt, "offset": offset, "text": text}
        try:
            return int(self._asked(lambda: self._client.post(f"{path}/log", body))["offset"])
        except _Elsewhere as error:
            return error.offset

    def close(self) -> None:
        """Close the connection. Whoever asks later, as a tail that still reads may, is refused."""
        self._closed = True
        self._client.__exit__(None, None, None)

    def _found(self) -> str:
        """Return the path of the run's record, made if there is none."""
        if self._path is None:
            slug = self._record.slug
            known = self._asked(lambda: self._client.get("runs", name=slug, limit=1))["runs"]
            run = known[0] if known else None
            if run is None or self._is_of_another_tree(run):
                run = self._asked(lambda: self._client.post("runs", self._new()))
            self._newest, self.page = int(run["attempt"]), str(run["page"])
            self._path = f"runs/{part(run['id'])}"
        return self._path

    def _is_of_another_tree(self, run: Mapping[str, Any]) -> bool:
        """Say whether the run was scheduled again since its record was made, with something else shipped."""
        if self._record.tree is None:
            return False
        path = f"runs/{part(run['id'])}"
        return bool(self._asked(lambda: self._client.get(path))["tree"] != self._record.tree)

    def _new(self) -> dict[str, Any]:
        record = self._record
        return {
            "slug": record.slug,
            "kind": record.kind,
            "folder": record.folder,
            "command": None if record.command is None else list(record.command),
            "tree": record.tree,
            "files": None if record.files is None else record.files(),
            "telemetry": record.telemetry,
            "checks": record.checks,
            "meta": dict(record.meta),
        }

    def _counted(self, number: int) -> int:
        """Return what the server calls our attempt `number`.

        A run whose location was emptied begins to count anew, and the server would take it for an old one.
        One that another flow process has taken is an old one: counted anew, it would silence the newer.
        """
        begun = self._begun or number
        if self._ahead == 0 and begun < self._newest:
            if self._asked(self._is_replaced):
                raise Refused("another flow process looks after it now")
            self._ahead = self._newest + 1 - begun
        return number + self._ahead

    def _asked(self, ask: Callable[[], Any]) -> Any:
        if self._closed:
            raise Refused("nothing more is said of this run")
        try:
            return ask()
        except Unavailable as error:
            raise Trouble(str(error)) from error
        except SaidNo as error:
            if error.code == "offset_moved":
                raise _Elsewhere(int((error.stored or {})["offset"])) from error
            if error.code == "seq_moved":
                raise Moved(str(error)) from error
            raise Refused(str(error)) from error
        except Rejected as error:
            raise Refused(str(error)) from error


class TelemetryDestination:
    """Keeps the points of one attempt in the server: what the tail of its telemetry file delivers to."""

    def __init__(self, api: RunWriter, number: int) -> None:
        self._api, self._number = api, number

    def cursor(self) -> Stored:
        """Return what is stored."""
        return self._api.cursor()

    def send(self, batch: Batch) -> None:
        """Store `batch`. Raises `Moved`, `Trouble` or `Refused`."""
        self._api.append(self._number, batch)

    def close(self) -> None:
        """Leave the connection to the run's record."""


class _Elsewhere(Exception):
    """A log ends elsewhere than was thought: after `offset` bytes."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset
