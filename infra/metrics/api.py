"""`Api`: what the commands ask of a Metrics server, over one kept connection."""

from __future__ import annotations

import json
import re
import ssl
import time
import uuid
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import msgspec

from infra.metrics.errors import Refused, Rejected, Unavailable
from infra.metrics.http import httpx
from runtime import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from runtime.events.syvain.settings import MetricsSettings

__all__ = ["Api", "Frame", "part"]

_NOT_NOW = {408, 425, 429, 500, 502, 503, 504}
_NUM_TRIES = 4
_LONGEST_WAIT_S = 10.0
_PREFIX = "syvain.v2."


class Columns(msgspec.Struct, frozen=True):
    """Points as columns of equal length. A step is null where the writer gave none."""

    step: list[int | None]
    timestampMs: list[int]  # noqa: N815 - the wire's name
    value: list[float]


class Frame(msgspec.Struct, frozen=True):
    """Some points of one partition, in the order of the axis; a partition may come in many frames."""

    seriesName: str  # noqa: N815 - the wire's name
    metadata: dict[str, str]
    data: Columns


class _Line(msgspec.Struct, frozen=True):
    event: str
    data: msgspec.Raw


_lines = msgspec.json.Decoder(_Line)
_frames = msgspec.json.Decoder(Frame)


class Api:
    """A Metrics server as the commands see it. Use it as a context: it closes its connection.

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

    def ask(self, name: str, **data: Any) -> Mapping[str, Any]:
        """Send one event of the organisation and return the data of its reply."""
        envelope = {"messageId": str(uuid.uuid4()), "event": _PREFIX + name, "data": data}
        response = self._request("POST", "/api/v2/events", body=[envelope])
        try:
            reply = json.loads(response.content)[0]
            failed, answer = reply["event"] == _PREFIX + "error", reply["data"]
        except (ValueError, LookupError, TypeError) as error:
            raise self._garbled(response.content) from error
        if failed:
            raise _refused(answer)
        if not isinstance(answer, dict):
            raise self._garbled(response.content)
        return answer

    def points(
        self,
        experiment_id: str,
        *,
        names: Sequence[str] | None = None,
        where: Sequence[Mapping[str, str]] = (),
        axis: str = "step",
        newest: bool = False,
    ) -> Iterator[Frame]:
        """Stream the points of an experiment. `names` unset means every metric.

        `where` holds the wire's conditions: `{"metadataKey"}` and, for one value, `{"metadataValue"}`. Where
        attempts repeated a step, every copy comes in its order of arrival, or the newest attempt's alone.
        """
        query: dict[str, Any] = {"experimentId": experiment_id, "filter": list(where), "xAxis": axis}
        if newest:
            query["copies"] = "newest"
        if names is not None:
            query["seriesNames"] = list(names)
        envelope = {"messageId": "series", "event": _PREFIX + "query.experimentseries", "data": query}
        request = self._http.build_request(
            "POST", "/api/v2/query/series", content=_json(envelope), headers=_JSON_BODY
        )
        response = self._send(request, stream=True)
        try:
            yield from self._frames(response)
        finally:
            response.close()

    def _frames(self, response: httpx.Response) -> Iterator[Frame]:
        line: str | bytes = b""
        try:
            for line in response.iter_lines():
                if not line:
                    continue
                head = _lines.decode(line)
                if head.event == _PREFIX + "query.series.data":
                    yield _frames.decode(head.data)
                elif head.event == _PREFIX + "error":
                    raise _refused(json.loads(bytes(head.data)))
                elif head.event == _PREFIX + "query.experimentseries.done":
                    return
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._unreachable(error)}, in the middle of an answer: ask again") from error
        except msgspec.DecodeError as error:
            raise self._garbled(line) from error
        raise Unavailable(f"Metrics at {self.host} stopped in the middle of an answer: ask again")

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
            headers |= _JSON_BODY
        content = None if body is None else _json(body)
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
        return Refused(text, status=response.status_code, code=_code(response))

    def _unreachable(self, error: httpx.HTTPError) -> str:
        return f"Metrics at {self.host} cannot be reached ({type(error).__name__}: {error})"

    def _garbled(self, body: str | bytes) -> Refused:
        return Refused(f"{self.host} does not answer as a Metrics server does, but with {body[:60]!r}")


_JSON_BODY = {"content-type": "application/json"}


def part(text: str) -> str:
    """Return a text as one part of a path.

    Raises:
        Rejected: it is no text that can be sent.
    """
    return quote(_sendable(text), safe="")


def _sendable(text: str) -> str:
    """Return a text as it is. Of an argument that is no UTF-8, Python makes one that cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 30) : error.start + 30]
        raise Rejected(f"{around!a} is no UTF-8 text: give one that is") from error
    return text


def _json(body: Any) -> bytes:
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise Rejected("JSON has finite numbers only, this holds NaN or an infinity") from error
    return _sendable(text).encode()


def _refused(data: Any) -> Refused:
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


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _wait_s(response: httpx.Response) -> float:
    asked = response.headers.get("retry-after", "")
    return min(float(asked), _LONGEST_WAIT_S) if re.fullmatch(r"\d{1,9}", asked) else 0.5
