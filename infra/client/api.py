"""`Client`: how a command asks a Metrics server, over one kept connection."""

from __future__ import annotations

import json
import re
import ssl
import time
import uuid
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from infra.client.errors import Refused, Rejected, Unavailable
from infra.client.http import httpx
from runtime import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from runtime.events.syvain.settings import MetricsSettings

__all__ = ["JSON_BODY", "Client", "json_bytes", "part", "refusal"]

_NOT_NOW = {408, 425, 429, 500, 502, 503, 504}
_NUM_TRIES = 4
_LONGEST_WAIT_S = 10.0

JSON_BODY = {"content-type": "application/json"}


class Client:
    """A Metrics server as a command sees it. Use it as a context: it closes its connection.

    Every call raises `Refused` (the server said no), `Rejected` (what was to be sent cannot be) or
    `Unavailable` (it cannot be reached, or could not answer in four tries). A try that is repeated carries
    the same idempotency key.
    """

    def __init__(
        self,
        settings: MetricsSettings,
        *,
        timeout_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.host = settings.host
        self._sleep = sleep
        headers = {
            "authorization": f"Bearer {settings.api_key}",
            "user-agent": f"slugline/{__version__}",
            "x-syvain-client": "slugline",
            "x-syvain-client-version": __version__,
            "accept": "application/json",
            "accept-encoding": "gzip",
        }
        # Reading the system's certificates takes 0.2 s, which a host without TLS has no use for.
        plain = settings.host.startswith("http://")
        self._http = httpx.Client(
            base_url=settings.host,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, /, **query: str | int | None) -> Any:
        """GET /api/v1/`path`; a query parameter that is None is left out."""
        given = {name: one for name, one in query.items() if one is not None}
        return self._call(
            "GET",
            path,
            query={name: _sendable(one) if isinstance(one, str) else one for name, one in given.items()},
        )

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST to /api/v1/`path` and return the data of the answer."""
        return self._call("POST", path, body=body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """PATCH /api/v1/`path` and return the data of the answer."""
        return self._call("PATCH", path, body=body)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """PUT /api/v1/`path` and return the data of the answer."""
        return self._call("PUT", path, body=body)

    def delete(self, path: str) -> Any:
        """DELETE /api/v1/`path` and return the data of the answer."""
        return self._call("DELETE", path)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        response = self._request(method, f"/api/v1/{path}", query=query, body=body)
        try:
            return json.loads(response.content)["data"]
        except (ValueError, LookupError, TypeError) as error:
            raise self._garbled(response.content) from error

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
    ) -> httpx.Response:
        headers = {} if method == "GET" else {"idempotency-key": str(uuid.uuid4())}
        if body is not None:
            headers |= JSON_BODY
        content = None if body is None else json_bytes(body)
        return self._send(
            self._http.build_request(method, path, params=query, content=content, headers=headers)
        )

    def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        for last in [*[False] * (_NUM_TRIES - 1), True]:
            try:
                response = self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                response.read()
            except httpx.HTTPError as error:
                raise Unavailable(
                    f"{self._unreachable(error)}: check that it runs and that the host is right"
                ) from error
            if response.status_code not in _NOT_NOW:
                raise self._said_no(response)
            if not last:
                self._sleep(_wait_s(response))
        raise Unavailable(
            f"Metrics at {self.host} cannot answer now ({response.status_code}: {_text(response)}):"
            " try again later"
        )

    def _said_no(self, response: httpx.Response) -> Refused:
        if response.is_redirect:
            text = f"Metrics at {self.host} redirects to {response.headers.get('location')}: use that host"
        elif response.status_code == 401:
            text = f"Metrics at {self.host} refuses the key: syvain-metrics auth login saves another one"
        elif response.status_code == 404 and _code(response) is None:
            text = f"{self.host} has no {response.request.url.path}: is it a Metrics server?"
        else:
            text = _text(response)
        return Refused(text, status=response.status_code, code=_code(response), stored=_stored(response))

    def _unreachable(self, error: httpx.HTTPError) -> str:
        return f"Metrics at {self.host} cannot be reached ({type(error).__name__}: {error})"

    def _garbled(self, body: str | bytes) -> Refused:
        return Refused(f"{self.host} does not answer as a Metrics server does, but with {body[:60]!r}")


def part(text: str) -> str:
    """Return a text as one part of a path.

    Raises:
        Rejected: it is empty, which would be another path, or no text that can be sent.
    """
    if not text:
        raise Rejected("an id must not be empty: give one that the server has")
    return quote(_sendable(text), safe="")


def _sendable(text: str) -> str:
    """Return a text as it is. Of an argument that is no UTF-8, Python makes one that cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 30) : error.start + 30]
        raise Rejected(f"{around!a} is no UTF-8 text: give one that is") from error
    return text


def json_bytes(body: Any) -> bytes:
    """Return JSON as it is sent.

    Raises:
        Rejected: it holds what JSON or UTF-8 cannot hold.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise Rejected("JSON has finite numbers only, this holds NaN or an infinity") from error
    return _sendable(text).encode()


def refusal(data: Any) -> Refused:
    """Return the error that an answer's own error fields say."""
    fields = data if isinstance(data, dict) else {}
    code, status = fields.get("code"), fields.get("status")
    return Refused(_line(fields.get("message") or code or "it was refused"), status=status, code=code)


def _text(response: httpx.Response) -> str:
    try:
        return _line(json.loads(response.content)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return _line(f"HTTP {response.status_code} {response.text[:200]}")


def _code(response: httpx.Response) -> str | None:
    """Return the code that the one error shape begins its details with."""
    try:
        details = json.loads(response.content)["error"]["details"]
        found = re.match(r"code=(\w+)", details)
    except (ValueError, LookupError, TypeError):
        return None
    return found[1] if found else None


def _stored(response: httpx.Response) -> dict[str, Any] | None:
    """Return what a conflict says is stored."""
    try:
        found = json.loads(response.content)["error"]["stored"]
    except (ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _wait_s(response: httpx.Response) -> float:
    asked = response.headers.get("retry-after", "")
    return min(float(asked), _LONGEST_WAIT_S) if re.fullmatch(r"\d{1,9}", asked) else 0.5
