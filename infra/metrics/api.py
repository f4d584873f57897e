"""`Api`: what `syvain-metrics` asks of a Metrics server."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from infra.client.api import JSON_BODY, Client, json_bytes, refusal
from infra.client.errors import Unavailable
from infra.client.http import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Api", "Frame"]

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


class Api(Client):
    """The server as `syvain-metrics` sees it: its events and its streams of points, too."""

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
            raise refusal(answer)
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
            "POST", "/api/v2/query/series", content=json_bytes(envelope), headers=JSON_BODY
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
                    raise refusal(json.loads(bytes(head.data)))
                elif head.event == _PREFIX + "query.experimentseries.done":
                    return
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._unreachable(error)}, in the middle of an answer: ask again") from error
        except msgspec.DecodeError as error:
            raise self._garbled(line) from error
        raise Unavailable(f"Metrics at {self.host} stopped in the middle of an answer: ask again")
