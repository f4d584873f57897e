"""What a client asks to be written to one experiment: checked, not yet applied."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.server.limits import Partition

__all__ = ["Annotate", "Change", "Command", "Other", "Record", "Records", "Revoke", "annotation_uid"]


@dataclass(frozen=True, slots=True)
class Record:
    """One point. `timestamp_ms` unset means the time of arrival; `step` may be `NO_STEP`."""

    message_id: str
    partition: Partition
    step: int
    timestamp_ms: int | None
    value: float


@dataclass(frozen=True, slots=True)
class Records:
    """Points of one batch as columns of equal length, in the order in which they were sent.

    `which` is the place of each point's partition among `partitions`. What is unset in `timestamps_ms` means
    the time of arrival; steps may be `NO_STEP`.
    """

    message_ids: Sequence[str]
    partitions: Sequence[Partition]
    which: Sequence[int]
    steps: Sequence[int]
    timestamps_ms: Sequence[int | None]
    values: Sequence[float]

    def __len__(self) -> int:
        return len(self.message_ids)

    @classmethod
    def of(cls, records: Sequence[Record]) -> Records:
        """Return single points as columns."""
        places: dict[Partition, int] = {}
        which = [places.setdefault(record.partition, len(places)) for record in records]
        return cls(
            [record.message_id for record in records],
            list(places),
            which,
            [record.step for record in records],
            [record.timestamp_ms for record in records],
            [record.value for record in records],
        )


@dataclass(frozen=True, slots=True)
class Annotate:
    """A text with an object. `at_ms` unset means the time of arrival."""

    message_id: str
    text: str
    meta: str
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """A start, done or error. `at_ms` unset means the time of arrival."""

    message_id: str
    kind: Literal["start", "done", "error"]
    at_ms: int | None
    error_message: str | None = None
    error_meta: str | None = None


@dataclass(frozen=True, slots=True)
class Revoke:
    """The end of the tokens of the session that asks."""

    message_id: str


Other = Annotate | Change | Revoke
Command = Record | Other


def annotation_uid(experiment_uid: str, message_id: str) -> str:
    """Return the id of an annotation: the same for every copy of its event."""
    return str(uuid.uuid5(uuid.UUID(experiment_uid), message_id))
