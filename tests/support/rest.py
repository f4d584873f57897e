"""The REST API as plain requests: what a test says is what is sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

    from tests.support.metrics_server import MetricsClient

__all__ = ["Rest"]


class Rest:
    """Asks with the organisation's key, or with `token`; every reply's envelope is checked."""

    def __init__(self, client: MetricsClient) -> None:
        self._client = client

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        /,
        *,
        token: str | None = None,
        key: str | None = None,
        **query: Any,
    ) -> httpx.Response:
        """Send one request and return the response as it is. `key` is its idempotency-key."""
        headers = {
            "authorization": f"Bearer {token or self._client.key}",
            "content-type": "application/json",
        }
        if key is not None:
            headers["idempotency-key"] = key
        content = None if body is None else json.dumps(body)
        return self._client.http.request(
            method, f"/api/v1{path}", headers=headers, params=query, content=content
        )

    def ask(self, method: str, path: str, body: Any = None, /, **more: Any) -> Any:
        """Send one request that must succeed and return its data."""
        response = self.send(method, path, body, **more)
        assert response.status_code == 200, response.text
        envelope = response.json()
        assert set(envelope) == {"data", "error"}
        assert envelope["error"] is None
        return envelope["data"]

    def refused(self, method: str, path: str, body: Any = None, /, **more: Any) -> tuple[int, str]:
        """Send one request that must be refused and return the status and the code."""
        response = self.send(method, path, body, **more)
        envelope = response.json()
        assert envelope["data"] is None
        details = dict(part.split("=", 1) for part in envelope["error"]["details"].split("; "))
        return response.status_code, details["code"]

    def experiment(self, slug: str, **more: Any) -> dict[str, Any]:
        """Create an experiment."""
        return dict(self.ask("POST", "/experiments", {"slug": slug, **more})["experiment"])

    def ingestion_token(self, experiment_id: str, **more: Any) -> str:
        """Make an ingestion key."""
        return str(self.ask("POST", f"/experiments/{experiment_id}/ingestion-keys", more)["token"])
