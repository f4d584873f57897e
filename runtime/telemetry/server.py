"""`ServerDestination`: a run's telemetry delivered to a Metrics server."""

from __future__ import annotations

import gzip
import re
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from runtime import __version__
from runtime.telemetry.cursor import Cursor
from runtime.telemetry.destination import Moved, Refused, Stored, Trouble

if TYPE_CHECKING:
    import httpx

    from runtime.events.syvain.settings import MetricsSettings
    from runtime.telemetry.destination import Batch

__all__ = ["ServerDestination"]

_NOT_NOW = {408, 425, 429}
_GZIP_FROM_BYTES = 4_096


class ServerDestination:
    """One attempt of a run, as its server knows it, over one kept connection.

    `run` is the run's id, or its name when no slash is in it. Once a newer attempt has spoken, everything is
    refused.
    """

    def __init__(self, settings: MetricsSettings, run: str, *, attempt: int, timeout_s: float = 10.0) -> None:
        import httpx

        self._path = f"/api/v1/runs/{quote(run, safe='')}/telemetry"
        self._attempt = attempt
        # Reading the system's certificates takes 0.2 s, which a host without TLS has no use for.
        plain = settings.host.startswith("http://")
        self._http = httpx.Client(
            base_url=settings.host,
            headers={
                "authorization": f"Bearer {settings.api_key}",
                "user-agent": f"slugline/{__version__}",
                "accept": "application/json",
            },
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
        )
        self._http_error = httpx.HTTPError

    def cursor(self) -> Stored:
        """Return what is stored. Raises `Trouble` or `Refused`."""
        data = self._request("GET", f"{self._path}/cursor")
        try:
            return Stored(
                last_seq=data["last_seq"],
                points=data["points"],
                keys=data["keys"],
                dropped=data["dropped"],
                cursor=Cursor.from_json(data["cursor"]),
            )
        except (LookupError, TypeError) as error:
            raise Trouble(f"the answer is no cursor: {data!r:.100}") from error
        except ValueError as error:  # going on without it would double what is stored
            raise Refused(f"its cursor is not one of this version: {error}") from error

    def send(self, batch: Batch) -> None:
        """Store `batch` if it follows what is stored. Raises `Moved`, `Trouble` or `Refused`."""
        body = orjson.dumps(
            {
                "attempt": self._attempt,
                "after_seq": batch.after_seq,
                "points": batch.points,
                "dropped": batch.dropped,
                "cursor": batch.cursor.to_json(),
            }
        )
        self._request("POST", self._path, body)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {} if body is None else {"content-type": "application/json"}
        if body is not None and len(body) >= _GZIP_FROM_BYTES:
            headers["content-encoding"] = "gzip"
            body = gzip.compress(body, 1, mtime=0)
        try:
            response = self._http.request(method, path, headers=headers, content=body)
        except self._http_error as error:
            raise Trouble(f"{type(error).__name__}: {error}") from error
        if not response.is_success:
            raise _why(response)
        try:
            return orjson.loads(response.content)["data"]
        except (ValueError, LookupError, TypeError) as error:
            raise Trouble(f"the answer is not what was expected: {response.content[:60]!r}") from error


def _why(response: httpx.Response) -> Exception:
    """Return what an answer that is no success means."""
    status = response.status_code
    try:
        error = orjson.loads(response.content)["error"]
        code, text = str(error["code"]), str(error["message"])
    except (ValueError, LookupError, TypeError):
        code, text = "", response.text
    text = " ".join(f"HTTP {status} {text}".split())[:300]
    if code == "seq_moved":
        return Moved(text)
    if status in _NOT_NOW or not 400 <= status < 500:
        seconds = response.headers.get("retry-after", "").strip()
        return Trouble(text, float(seconds) if re.fullmatch(r"\d{1,9}", seconds) else None)
    return Refused(text)
