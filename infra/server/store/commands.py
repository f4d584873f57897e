"""What a client asks to be written to one experiment: checked, not yet applied."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from infra.server.limits import Partition

__all__ = ["Annotate", "Change", "Command", "Record", "Revoke", "annotation_uid"]


@dataclass(frozen=True, slots=True)
class Record:
    """One point. `timestamp_ms` unset means the time of arrival."""

    message_id: str
    partition: Partition
    step: int
    timestamp_ms: int | None
    value: float


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


Command = Record | Annotate | Change | Revoke


def annotation_uid(experiment_uid: str, message_id: str) -> str:
    """Return the id of an annotation: the same for every copy of its event."""
    return str(uuid.uuid5(uuid.UUID(experiment_uid), message_id))
