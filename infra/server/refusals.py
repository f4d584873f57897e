"""What the server says no with: one error for every route, with one list of its codes.

`status` decides for some clients whether they try again and `retryable` for others, so both come from here
and never disagree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RETRYABLE_STATUSES", "Refused", "StoreUnavailable", "Unusable", "statuses"]

RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})

_STATUS = {
    "batch_too_large": 400,
    "body_too_large": 413,
    "checks_unreadable": 400,
    "cycle": 409,
    "encoding_not_supported": 415,
    "event_not_known": 400,
    "experiment_folder_move_conflict": 409,
    "experiment_mismatch": 400,
    "experiment_not_found": 404,
    "folder_already_exists": 409,
    "folder_move_conflict": 409,
    "folder_not_found": 404,
    "folder_not_empty": 409,
    "forbidden": 403,
    "idempotency_key_in_progress": 409,
    "idempotency_key_reused": 422,
    "ingestion_key_not_found": 404,
    "invalid_event": 422,
    "key_not_found": 404,
    "last_owner": 409,
    "invalid_request": 422,
    "limit_exceeded": 422,
    "malformed_request": 400,
    "member_already_exists": 409,
    "member_not_found": 404,
    "metric_not_found": 404,
    "not_found": 404,
    "offset_moved": 409,
    "request_timeout": 408,
    "run_not_found": 404,
    "seq_moved": 409,
    "series_limit_exceeded": 422,
    "server_error": 500,
    "sign_in_refused": 401,
    "superseded": 409,
    "telemetry_unreadable": 400,
    "token_not_found": 404,
    "too_many_attempts": 429,
    "unauthorized": 401,
    "unavailable": 503,
    "view_already_exists": 409,
    "view_not_found": 404,
}


def statuses() -> dict[str, int]:
    """Return every code that there is with its HTTP status."""
    return dict(_STATUS)


class Refused(Exception):
    """One request or one event is refused; whatever else it came with goes on.

    `code` is one of a fixed list and decides the HTTP status. `retry_after_s` unset means that waiting
    does not help or that the client may choose. `stored` is what the client goes on from instead.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after_s: int | None = None,
        stored: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = _STATUS[code]
        self.retryable = self.status in RETRYABLE_STATUSES
        self.details = dict(details or {})
        self.retry_after_s = retry_after_s
        self.stored = dict(stored or {})


class StoreUnavailable(Refused):
    """The database could not take or give anything now; nothing of the request was applied."""

    def __init__(self, reason: str) -> None:
        super().__init__("unavailable", f"the database is not available: {reason}", retry_after_s=2)


class Unusable(Exception):
    """What a command was pointed at cannot be used as it was asked to. The text is one line for people."""
