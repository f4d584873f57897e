"""The list of experiments and an experiment's charts in a real browser, on wide screens and narrow ones."""

from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from infra.server.api.app import create_app
from infra.server.store import access
from infra.server.store.store import Store
from tests.support.browser import watched
from tests.support.served_app import served


@dataclass
class Site:
    url: str
    http: httpx.Client

    def ask(self, path, body, **headers: str):
        response = self.http.post(f"/api/v1{path}", json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def experiment(self, slug, points=(), metadata=None, **more):
        """Make an experiment with points of `loss`, and return the address of its page."""
        made = self.ask("/experiments", {"slug": slug, "metadata": {}, **more})["experiment"]
        address = f"/experiments/{made['id']}"
        key = self.ask(f"{address}/ingestion-keys", {"name": "test"})
        of = {"name": "loss", "metadata": metadata or {}}
        sent = [
            {"client_event_id": str(at), "step": step, "value": value, **of}
            for at, (step, value) in enumerate(points)
        ]
        if sent:
            self.ask(f"{address}/ingest", {"data": sent}, authorization=f"Bearer {key['token']}")
        return f"{self.url}/dashboard{address}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("browser") / "metrics.sqlite3")

    def begin(connection):
        now: dict[str, Any] = {"now_ms": store.clock_ms()}
        organisation = access.create_organisation(connection, "ours", **now)
        return access.create_key(connection, organisation.id, "member", role="member", **now)[1]

    key = store.write_now(begin)
    with served(create_app(store, keyless=True)) as url:
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=30) as http:
            yield Site(url, http)
    store.close()


@pytest.fixture(params=[1400, 400], ids=["wide", "narrow"])
def page(browser, request):
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    with watched(context) as page:
        yield page
    context.close()


def overflow(page):
    """By how many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([7.2e10, 7.2e10 + 1e6, 7.2e10 + 2e6], id="a little of a large value"),
        pytest.param([1.20e-4, 1.25e-4, 1.30e-4], id="a little of a small value"),
        pytest.param([2.0000001, 2.0000002, 2.0000003], id="the eighth digit"),
        pytest.param([-0.3, 0.0, 0.3], id="around zero"),
    ],
)
def test_no_two_labels_of_an_axis_are_the_same(page, site, request, values):
    """Every label has the digits that tell it from its neighbours, and zero is 0."""
    points = [(12_345_000 + at, value) for at, value in enumerate(values)]
    page.goto(site.experiment(f"labels {request.node.callspec.id}", points))
    expect(page.locator("figure svg")).to_be_visible()
    for anchor in ("end", "middle"):
        labels = page.locator(f'.tick[text-anchor="{anchor}"]').all_text_contents()
        assert len(labels) > 1
        assert len(labels) == len(set(labels))
    if 0.0 in values:
        assert "0" in page.locator('.tick[text-anchor="end"]').all_text_contents()


def test_a_metric_without_steps_says_why_nothing_is_drawn(page, site, request):
    """Nothing fails under the pointer either."""
    page.goto(site.experiment(f"no steps {request.node.callspec.id}", [(None, 1.0), (None, 2.0)]))
    figure = page.locator("figure")
    expect(figure).to_contain_text("no point has a step")
    figure.hover()


def test_the_value_under_the_pointer_is_seen_however_long_the_names(page, site, request):
    """A long partition is cut, its value is not, and the page grows no wider."""
    metadata = {"k" * 100: "v" * 400}
    page.goto(site.experiment(f"tip {request.node.callspec.id}", [(1, 1.0), (2, 2.0), (3, 4.5)], metadata))
    for place in (0.2, 0.5, 0.9):
        chart = page.locator("figure svg")
        box = chart.bounding_box()
        chart.hover(position={"x": box["width"] * place, "y": 90})
        value, figure = page.locator(".tip b").bounding_box(), page.locator("figure").bounding_box()
        assert figure["x"] <= value["x"]
        assert value["x"] + value["width"] <= figure["x"] + figure["width"]
        assert page.locator(".tip").bounding_box()["height"] < 120
        assert overflow(page) == 0


def test_the_list_fits_its_window_and_every_part_of_a_row_is_read_in_whole_words(page, site, request):
    """The longest slug and description leave room for the rest: names, statuses and times are not torn."""
    site.experiment(f"list {request.node.callspec.id}", description="short")
    site.experiment("s" * 200, description="d" * 4000)
    page.goto(f"{site.url}/dashboard")
    row = page.locator("tr", has=page.locator(".slug", has_text=f"list {request.node.callspec.id}"))
    expect(row.locator("time")).not_to_be_empty()
    assert overflow(page) == 0
    for part in (".slug", ".status", "time"):
        assert row.locator(part).bounding_box()["height"] < 30, part
