"""What nobody may read of a run: the organisation's secrets, what they were, and its worker's own keys."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from runtime.errors import Rejected, Unavailable
from runtime.events.syvain.settings import metrics_settings
from runtime.telemetry.masking import Masker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OF_THE_WORKER", "Hidden"]

OF_THE_WORKER = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "O41_METRICS_API_KEY",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_API_KEY",
    "SYVAIN_METRICS_API_KEY",
)
"""What a run finds in its environment and nobody may read in its log (`env` prints all of it)."""


class Hidden:
    """The values that are masked in the log, the telemetry and the result of one run.

    `read_secrets` returns all of the organisation's: none of them may be read, nor what they were when an
    earlier attempt began. `environment` is the worker's. Lives as long as its flow process.
    """

    def __init__(self, read_secrets: Callable[[], Mapping[str, str]], environment: Mapping[str, str]) -> None:
        self._read_secrets, self._environment = read_secrets, environment
        self._secrets: Mapping[str, str] | None = None
        self._older: dict[str, str] = {}

    @property
    def secrets(self) -> Mapping[str, str]:
        """The organisation's secrets as they were last read; none before."""
        return self._secrets or {}

    def renew(self) -> None:
        """Read the secrets as they are now; those that were stay if nobody can say.

        Raises:
            Unavailable: nobody can, and none were read before: what must be masked is not known.
        """
        before = self._secrets
        try:
            self._secrets = self._read_secrets()
        except Unavailable:
            if before is None:
                raise
        for name, value in (before or {}).items():
            self._older[f"{name} {hash(value)}"] = value

    def values(self) -> Mapping[str, str]:
        """Return every value by a name for it.

        Raises:
            Unavailable: no secrets were read before, and none can be now.
        """
        # No secret has a name with blanks in it: one that is called alike hides none of these.
        ours = {
            f"{name} of the worker": value for name in OF_THE_WORKER if (value := self._environment.get(name))
        }
        with contextlib.suppress(Rejected):
            ours["the key of Metrics"] = metrics_settings(self._environment).api_key
        secrets = self._read_secrets() if self._secrets is None else self._secrets
        return {**ours, **self._older, **secrets}

    def masker(self) -> Masker:
        """Return what masks another stream. Raises as `values` does."""
        return Masker(self.values())
