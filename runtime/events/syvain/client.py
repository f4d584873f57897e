"""`MetricsClient`: protocol v2 over HTTP, one call a request; every failure becomes one of two kinds."""

from __future__ import annotations

import gzip
import ipaddress
import re
import ssl
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from urllib.parse import quote, urlsplit

import orjson

from runtime import __version__
from runtime.events.syvain.wire import EventError, read_answers, read_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx

    from runtime.events.kinds import Open
    from runtime.events.syvain.settings import MetricsSettings

__all__ = ["Garbled", "Grant", "Metrics", "MetricsClient", "Refusal", "Trouble"]

_TRANSIENT = {408, 425, 429}
_GZIP_FROM_BYTES = 1_024


class Trouble(Exception):
    """Metrics could not be reached or could not answer now. `retry_after_s` unset: it did not say."""

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Garbled(Trouble):
    """The answer was a success, and its body was not what the protocol says."""


class Refusal(Exception):
    """Metrics will not take this request, however often it is sent."""

    def __init__(self, status: int | None, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Grant:
    """What opening an experiment gives: its id, and a token that lets events in until it expires."""

    experiment_id: str
    token: str
    expires_at_ms: int
    accepts_timestamp_ms: bool = False


class Metrics(Protocol):
    """What the sender asks of a Metrics server. It exists so that its logic can be tested against a model.

    Every call raises `Trouble` or `Refusal`.
    """

    def open(self, event: Open) -> Grant:
        """Open the experiment that the slug names; one that exists is continued."""
        ...

    def refresh(self, grant: Grant) -> Grant:
        """Get a new token for an old one."""
        ...

    def folder_tree(self) -> Mapping[str, Any]:
        """Read all folders of the organisation."""
        ...

    def place(self, experiment_id: str, folder_id: str) -> None:
        """Put an experiment that is in no folder into one; where it is in one already, it stays there."""
        ...

    def write(
        self, grant: Grant, message_ids: Sequence[str], messages: Sequence[bytes]
    ) -> Mapping[str, EventError | None]:
        """Send messages about an experiment and return the answers to those that were answered."""
        ...

    def revoke(self, grant: Grant, *, timeout_s: float) -> None:
        """Give the token back."""
        ...

    def page(self, experiment_id: str) -> str:
        """Return the address at which people look at an experiment. Asks nobody, raises nothing."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class MetricsClient:
    """Talks to one Metrics host with one key over one kept connection. Made before a run, closed after it.

    `pack` says whether what is sent and asked for may be compressed; unset, it is unless the host is this
    machine, where it costs both sides more than the bytes do.
    """

    def __init__(
        self, settings: MetricsSettings, *, timeout_s: float = 30.0, pack: bool | None = None
    ) -> None:
        import httpx

        self.host = settings.host
        self._key = settings.api_key
        pack = not _is_this_machine(settings.host) if pack is None else pack
        self._gzip = False
        self._gzip_refused = not pack
        headers = {
            "user-agent": f"slugline/{__version__}",
            "x-syvain-client": "slugline",
            "x-syvain-client-version": __version__,
            "accept": "application/json",
            "accept-encoding": "gzip" if pack else "identity",
        }
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0))
        # Reading the system's certificates takes 0.2 s, which a host without TLS has no use for.
        plain = settings.host.startswith("http://")
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True
        self._http = httpx.Client(headers=headers, timeout=timeout, verify=verify)
        self._http_errors = httpx.HTTPError
        self._make_url = lru_cache(maxsize=8)(httpx.URL)

    def page(self, experiment_id: str) -> str:
        """Return the address of an experiment's page."""
        return f"{self.host}/dashboard/experiments/{experiment_id}"

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def check_key(self, *, timeout_s: float | None = None) -> None:
        """Ask whether the key is good; `timeout_s` unset waits like any other call."""
        self._request("GET", "/api/v2/auth/status", self._key, timeout_s=timeout_s)

    def open(self, event: Open) -> Grant:
        """Open the experiment that the slug names; one that exists is continued."""
        data = {"slug": event.slug, "description": event.description, "meta": dict(event.metadata)}
        return _grant(self._ask("experiment.open", data))

    def refresh(self, grant: Grant) -> Grant:
        """Get a new token for an old one."""
        data = {"experimentId": grant.experiment_id, "experimentToken": grant.token}
        return _grant(self._ask("experiment.tokenRefresh", data))

    def folder_tree(self, *, timeout_s: float | None = None) -> Mapping[str, Any]:
        """Read all folders of the organisation; `timeout_s` unset waits like any other call."""
        return self._ask("foldertree.read", {}, timeout_s=timeout_s)

    def place(self, experiment_id: str, folder_id: str) -> None:
        """Put an experiment that is in no folder into one; where it is in one already, it stays there."""
        data = {"experimentId": experiment_id, "fromFolderId": None, "toFolderId": folder_id}
        try:
            self._ask("folderexperiment.move", data)
        except Refusal as refusal:
            if refusal.status != 409:
                raise

    def write(
        self, grant: Grant, message_ids: Sequence[str], messages: Sequence[bytes]
    ) -> Mapping[str, EventError | None]:
        """Send messages about an experiment and return the answers to those that were answered."""
        body = self._write(grant, b"[%b]" % b",".join(messages), timeout_s=None)
        try:
            return read_answers(body, message_ids)
        except ValueError as error:
            raise Garbled(f"the answer is no JSON: {body[:60]!r}") from error

    def revoke(self, grant: Grant, *, timeout_s: float) -> None:
        """Give the token back."""
        data = {"experimentId": grant.experiment_id}
        self._write(grant, b"[%b]" % _envelope("experiment.tokenRevoke", data), timeout_s=timeout_s)

    def _write(self, grant: Grant, body: bytes, *, timeout_s: float | None) -> bytes:
        path = f"/api/v2/experiments/{quote(grant.experiment_id, safe='')}/events"
        if not self._gzip or len(body) < _GZIP_FROM_BYTES:
            return self._request("POST", path, grant.token, body, timeout_s=timeout_s)
        try:
            packed = gzip.compress(body, 1, mtime=0)
            return self._request("POST", path, grant.token, packed, timeout_s=timeout_s, encoding="gzip")
        except Refusal as refusal:
            if refusal.status != 415:
                raise
            self._gzip, self._gzip_refused = False, True
            return self._request("POST", path, grant.token, body, timeout_s=timeout_s)

    def _ask(
        self, name: str, data: Mapping[str, object], *, timeout_s: float | None = None
    ) -> Mapping[str, Any]:
        """Send one event of the organisation and return the data of its answer."""
        envelope = b"[%b]" % _envelope(name, data)
        body = self._request("POST", "/api/v2/events", self._key, envelope, timeout_s=timeout_s)
        try:
            replies = orjson.loads(body)
            reply = replies[0]
            failed, answer = reply["event"] == "syvain.v2.error", reply["data"]
        except (ValueError, LookupError, TypeError) as error:
            raise Garbled(f"the answer to {name} is not what was expected: {body[:60]!r}") from error
        if failed:
            _raise(read_error(answer))
        if not isinstance(answer, dict):
            raise Garbled(f"the answer to {name} has no data: {body[:60]!r}")
        return answer

    def _request(
        self,
        method: str,
        path: str,
        token: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
        encoding: str | None = None,
    ) -> bytes:
        headers = {"authorization": f"Bearer {token}"}
        if body is not None:
            headers["content-type"] = "application/json"
        if encoding is not None:
            headers["content-encoding"] = encoding
        timeout = self._http.timeout if timeout_s is None else timeout_s
        try:
            url = self._make_url(self.host + path)
            response = self._http.request(method, url, headers=headers, content=body, timeout=timeout)
        except self._http_errors as error:
            raise Trouble(f"{type(error).__name__}: {error}") from error
        if response.is_success:
            if body is not None and not self._gzip_refused:
                self._gzip = self._gzip or _offers_gzip(response.headers.get("accept-encoding", ""))
            return response.content
        text = _error_text(response)
        if method == "GET" and response.is_redirect:
            text = f"it redirects to {response.headers.get('location')}"
            raise Refusal(response.status_code, f"HTTP {response.status_code}", text)
        if response.status_code in _TRANSIENT or not 400 <= response.status_code < 500:
            raise Trouble(text, _retry_after_s(response))
        raise Refusal(response.status_code, f"HTTP {response.status_code}", text)


def _envelope(name: str, data: Mapping[str, object]) -> bytes:
    # A new id for every try: an open is idempotent by its slug, and its ids are never remembered.
    return orjson.dumps({"messageId": uuid.uuid4().hex, "event": f"syvain.v2.{name}", "data": data})


def _grant(data: Mapping[str, Any]) -> Grant:
    experiment_id, token, expires_at_ms = (
        data.get(key) for key in ("experimentId", "experimentToken", "expiresAtMs")
    )
    if not isinstance(experiment_id, str) or not isinstance(token, str) or type(expires_at_ms) is not int:
        raise Garbled(f"no experimentId, experimentToken and integer expiresAtMs among {sorted(data)}")
    return Grant(experiment_id, token, expires_at_ms, data.get("acceptsTimestampMs") is True)


def _raise(error: EventError) -> NoReturn:
    if error.retryable:
        raise Trouble(f"{error.code}: {error.text}", error.retry_after_s)
    raise Refusal(error.status, error.code, error.text)


def _offers_gzip(header: str) -> bool:
    for offer in header.lower().split(","):
        coding, _, parameters = offer.partition(";")
        if coding.strip() == "gzip":
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", parameters)
    return False


def _retry_after_s(response: httpx.Response) -> float | None:
    seconds = response.headers.get("retry-after", "").strip()
    return float(seconds) if re.fullmatch(r"\d{1,9}", seconds) else None


def _is_this_machine(host: str) -> bool:
    """Whether a URL names this machine by an address or a name that can mean no other."""
    name = urlsplit(host).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _error_text(response: httpx.Response) -> str:
    """Return the message of the body where there is one; one line, whatever the server sent."""
    try:
        text = str(orjson.loads(response.content)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        text = response.text
    return " ".join(f"HTTP {response.status_code} {text}".split())[:200]
