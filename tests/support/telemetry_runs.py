"""Runs with points at a real Metrics server, for what reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.rest import Rest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.metrics_server import MetricsClient

__all__ = ["RunAtServer", "page_points"]


class RunAtServer:
    """A run that this test makes and is the only one to write."""

    def __init__(self, client: MetricsClient, name: str, **fields: Any) -> None:
        self.rest = Rest(client)
        made = self.rest.ask("POST", "/runs", {"slug": name, **fields})
        self.name = name
        self.id = made["id"]
        self._seq = 0

    def write(self, *points: Mapping[str, float], dropped: Mapping[str, int] | None = None) -> None:
        """Append points as the tail does."""
        body = {"attempt": 1, "after_seq": self._seq, "points": points, "dropped": dropped or {}}
        stored = self.rest.ask("POST", f"/runs/{self.id}/telemetry", body)
        self._seq = stored["last_seq"]

    def says(self, **fields: Any) -> None:
        """Say how the run goes."""
        self.rest.ask("PATCH", f"/runs/{self.id}", {"attempt": 1, **fields})

    def end(self, state: str = "done") -> None:
        """End the run."""
        self.says(state=state)


def page_points() -> Sequence[dict[str, float]]:
    """The points of the page's example: 412 of them, with an evaluation at every tenth.

    They come from 2.31 down to 0.0398 and a little up again; so does the evaluation's loss.
    """
    points: list[dict[str, float]] = []
    for number in range(1, 413):
        loss = {1: 2.31, 400: 0.0398, 412: 0.0412}.get(number, round(2 / number + 0.0399, 4))
        point = {"step": number * 100, "loss": loss}
        if number % 10 == 0 and number // 10 <= 41:
            tenth = number // 10
            point["eval_loss"] = {1: 1.88, 38: 0.0261, 41: 0.0267}.get(tenth, round(1.5 / tenth + 0.0262, 4))
        points.append(point)
    return points
