"""The Telemetry tab as it is sent, and what its panels are drawn from."""

import re

import httpx
import pytest

from tests.support.rest import Rest

LAYOUT = (
    '[[panel]]\ny = ["loss", "lr"]\nx = "step"\nscale = "log"\n[[panel]]\ny = "never"\n[[stat]]\ny = "loss"\n'
)


@pytest.fixture
def rest(client):
    return Rest(client)


def made(rest, slug, points=(), **more):
    run = rest.ask("POST", "/runs", {"slug": slug, **more})
    rest.ask("POST", f"/runs/{slug}/telemetry", {"attempt": 1, "after_seq": 0, "points": [*points]})
    return run


def panels(rest, slug, **query):
    return rest.ask("GET", f"/runs/{slug}/telemetry/panels", **query)


def test_panels_are_drawn_of_every_point_there_is(rest, slug):
    points = [{"step": 1, "loss": 2.5, "lr": 0.0}, {"loss": 2.0}, {"step": 3, "loss": 1.5, "lr": 0.1}]
    made(rest, slug, points, telemetry=LAYOUT)
    drawn = panels(rest, slug, panels="0,1,9", width=100)
    assert (drawn["last_seq"], [panel["panel"] for panel in drawn["panels"]]) == (3, [0, 1])
    first, second = drawn["panels"]
    assert (first["title"], first["x"], first["scale"]) == ("loss, lr", "step", "log")
    loss, lr = first["lines"]
    assert (loss["x"], loss["last"], loss["points"], loss["without_x"]) == ([1, 3], [2.5, 1.5], 3, 1)
    assert (lr["x"], lr["hidden"]) == ([3], 1)
    assert (second["x"], second["lines"][0]["x"], second["lines"][0]["points"]) == (None, [], 0)
    later = {"attempt": 2, "after_seq": 3, "points": [{"step": 3, "loss": 1.0}]}
    rest.ask("POST", f"/runs/{slug}/telemetry", later)
    (panel,) = panels(rest, slug)["panels"]
    assert (panel["lines"][0]["last"], panel["attempts"]) == ([2.5, 1.0], [{"attempt": 2, "x": 3}])
    (part,) = panels(rest, slug, first=-1.5, last=2)["panels"]
    assert part["lines"][0]["x"] == [1, 3]


def test_without_a_layout_panels_are_those_of_the_keys_so_far(rest, slug):
    made(rest, slug, [{"loss": 1, "step": 5}, {"lr": 1}])
    titles = [(panel["title"], panel["x"]) for panel in panels(rest, slug, panels="0,1,2,3")["panels"]]
    assert titles == [("loss", "step"), ("step", "step"), ("lr", "step")]


def test_what_cannot_be_drawn_is_refused(rest, slug):
    made(rest, slug)
    too_many = ",".join(["0"] * 17)
    wrong = [
        ("panels", "x"),
        ("panels", ""),
        ("panels", too_many),
        ("width", "0"),
        ("width", "4001"),
        ("first", "x"),
    ]
    for name, value in wrong:
        refused = rest.refused("GET", f"/runs/{slug}/telemetry/panels", **{name: value})
        assert refused == (422, "invalid_request"), (name, value)


def test_a_run_that_is_not_there_has_no_panels(rest, slug):
    assert rest.refused("GET", f"/runs/{slug}/telemetry/panels") == (404, "run_not_found")


def test_the_tab_shows_its_run_and_no_text_of_it_becomes_markup(server, rest, slug):
    evil = '</pre><script>alert(1)</script>"><img src=x>'
    files = [{"path": f"{evil}{at}", "size_bytes": 2**20, "blake3": "0" * 64} for at in range(600)]
    layout = f"[[panel]]\ntitle = '''{evil}'''\ny = \"loss\"\n[[stat]]\ntitle = '''{evil}'''\ny = \"loss\"\n"
    run = made(rest, slug, [{"loss": 0.25}], telemetry=layout, command=["sh", "-c", evil], files=files)
    rest.ask("POST", f"/runs/{slug}/log", {"attempt": 1, "offset": 0, "text": evil * 2000})
    rest.ask("POST", f"/runs/{slug}/log", {"attempt": 2, "offset": 0, "text": f"{evil}\n"})
    rest.ask("PATCH", f"/runs/{slug}", {"state": "retrying", "reason": evil, "attempt": 2, "result": evil})
    response = httpx.get(f"{run['page']}/telemetry", timeout=60)
    assert response.status_code == 200
    text = response.text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert text.count("alert(1)") > 500
    assert "600 files, 600.0 MiB" in text
    assert "The first 500 are shown." in text
    assert re.search(r"<b title=\"0.25\">0.25</b>", text)
    policy = response.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert " style=" not in text
    for reference in re.findall(r'(?:src|href)="([^"]+)"', text):
        assert httpx.get(server.url + reference, timeout=60).status_code == 200, reference


def test_what_a_status_cannot_say_stands_beside_it_on_every_page(server, rest, slug):
    page = made(rest, slug)["page"]
    for state, shown in (("scheduled", False), ("waiting", True), ("cancelled", True)):
        rest.ask("PATCH", f"/runs/{slug}", {"state": state, "reason": f"because of {state}"})
        for address in (page, f"{page}/telemetry"):
            text = httpx.get(address, timeout=60).text
            head = text[text.index("<h1>") : text.index("</h1>")]
            assert (f'"status run-{state}"' in head) is shown
            assert f"because of {state}" in text
        text = httpx.get(f"{server.url}/dashboard", timeout=60).text
        row = text[text.index(f">{slug}</a>") :]
        assert (f'"status run-{state}"' in row[: row.index("</tr>")]) is shown


def test_the_licence_of_what_draws_lies_beside_it(server):
    static = f"{server.url}/dashboard/static/uplot"
    assert "MIT License" in httpx.get(f"{static}/LICENSE.txt", timeout=60).text
    assert "uPlot (v1.6.32)" in httpx.get(f"{static}/uPlot.iife.min.js", timeout=60).text
