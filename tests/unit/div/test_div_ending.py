"""What `div cancel` and `div resume` tell a run's page, once Prefect has done what was asked."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from flows.div.ending import cancel, resume
from runtime.errors import Unavailable


class Page:
    """The runs API, which may be away."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[str] = []
        self.is_away = self.has_begun = False

    def run(self, name: str) -> dict[str, Any]:
        self._check()
        return {"name": f"name of {name}", "attempt": 3}

    def tell(self, name: str, said: dict[str, Any]) -> None:
        self._check()
        self.told.append((name, said))

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("Metrics is away")


@pytest.fixture
def page(monkeypatch) -> Page:
    page = Page()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("flows.div.api.connect", lambda: contextlib.nullcontext(page))

    def asked(slug: str) -> SimpleNamespace:
        page.asked.append(slug)
        return SimpleNamespace(state="Cancelled", flow_run_id="f", page="p")

    monkeypatch.setattr("flows.scheduling.resume", asked)
    monkeypatch.setattr(
        "flows.scheduling.cancel", lambda slug: SimpleNamespace(run=asked(slug), begun=page.has_begun)
    )
    return page


def test_a_resumed_run_is_scheduled_unless_its_next_attempt_has_begun(page):
    """A flow process that was faster than we were had its page say scheduled for as long as it ran."""
    resume("a")
    said = {"state": "scheduled", "reason": None, "attempt": 3, "flow_run_id": "f"}
    assert page.told == [("name of a", said)]


def test_a_run_is_cancelled_also_while_metrics_is_away(page, capsys):
    """It may be what keeps every GPU busy."""
    page.is_away = True
    cancel("a")
    assert page.asked == ["a"]
    assert capsys.readouterr().out == "a: cancelled\n"


def test_a_cancelled_run_is_cancelled_on_its_page_unless_a_process_says_so_itself(page):
    """One whose process was ended while it started stayed scheduled there, and following it never ended."""
    cancel("a")
    page.has_begun = True
    cancel("b")
    assert page.told == [
        ("name of a", {"state": "cancelled", "reason": "cancelled by the user", "attempt": 3})
    ]
