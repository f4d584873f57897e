"""The Telemetry tab in a real browser, looked at by a person who may only look."""

import re
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from infra.server.api.app import create_app
from infra.server.store import access, people, sign_in, telemetry
from infra.server.store import runs as run_rows
from infra.server.store.store import Store
from tests.support.browser import ink, watched
from tests.support.served_app import served

LAYOUT = """
x = "step"

[[panel]]
title = "Loss"
y = ["loss", "eval_loss"]
scale = "log"

[[panel]]
title = "F1"
y = ["f1", "typed_f1"]
min = 0.9
max = 1.0
rule = 0.95

[[panel]]
y = "leak_recall"
wide = true

[[stat]]
title = "Samples/s"
y = "speed"

[[stat]]
y = ["loss", "never"]
reduce = "min"
"""


@dataclass
class Site:
    url: str
    store: Store
    http: httpx.Client
    cookie: str

    def ask(self, method, path, body):
        response = self.http.request(method, f"/api/v1/runs{path}", json=body)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def run(self, name, points=(), **more):
        """Make a run with points, and return the address of its Telemetry tab."""
        made = self.ask("POST", "", {"slug": name, **more})
        self.write(name, points)
        return f"{self.url}/dashboard/experiments/{made['experiment_id']}/telemetry"

    def write(self, name, points, attempt=1):
        """Append points, past the limit of one request too."""
        self.ask("PATCH", f"/{name}", {"attempt": attempt})

        def append(connection):
            organisation = access.first_organisation(connection)
            assert organisation is not None
            row = run_rows.find(connection, organisation.id, name)
            batch = telemetry.batch_of(points, after_seq=row.last_seq, dropped={}, cursor=None)
            telemetry.append(connection, row, batch)

        self.store.write_now(append)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("browser") / "metrics.sqlite3")

    def begin(connection):
        now: dict[str, Any] = {"now_ms": store.clock_ms()}
        organisation = access.create_organisation(connection, "ours", **now)
        _, key = access.create_key(connection, organisation.id, "member", role="member", **now)
        viewer = people.add(
            connection,
            organisation.id,
            email="v@example.com",
            name="V",
            role="viewer",
            password_hash=None,
            **now,
        )
        return key, sign_in.begin(connection, viewer.id, None, **now)

    key, cookie = store.write_now(begin)
    with served(create_app(store, keyless=False)) as url:
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=30) as http:
            yield Site(url, store, http, cookie)
    store.close()


@pytest.fixture
def page(browser, site):
    context = browser.new_context(viewport={"width": 1280, "height": 1400})
    context.add_cookies([{"name": "slugline", "value": site.cookie, "url": site.url}])
    with watched(context) as page:
        yield page
    context.close()


def panel(page, title):
    """A panel once it is drawn, or says that it has nothing to draw."""
    figure = page.locator("figure", has=page.locator("figcaption", has_text=re.compile(f"^{title}$")))
    expect(figure.locator("canvas, .empty")).to_have_count(1)
    return figure


def curve(**keys):
    """A point a step, each key a function of it; None where the line lacks the key."""
    steps = range(100)
    points = [{"step": step, **{key: value(step) for key, value in keys.items()}} for step in steps]
    return [{key: value for key, value in point.items() if value is not None} for point in points]


def test_a_layout_is_drawn_as_it_says(site, page):
    points = curve(
        loss=lambda step: 10.0 ** -(step / 25),
        eval_loss=lambda step: 0.0 if step == 50 else -1.0 if step == 60 else 0.5 if step % 10 == 0 else None,
        f1=lambda step: 0.9 + step / 1000,
        speed=lambda step: 35.5 + step,
    )
    page.goto(site.run("laid-out", [*points, {"loss": 5.0}], telemetry=LAYOUT))
    loss, f1, recall = panel(page, "Loss"), panel(page, "F1"), panel(page, "leak_recall")
    assert page.locator("figcaption").all_inner_texts() == ["Loss", "F1", "leak_recall"]

    boxes = [figure.bounding_box() for figure in (loss, f1, recall)]
    assert boxes[0]["y"] == boxes[1]["y"] < boxes[2]["y"]
    assert boxes[0]["x"] == boxes[2]["x"] < boxes[1]["x"]
    assert boxes[0]["width"] == boxes[1]["width"] < boxes[2]["width"] / 2

    # On a logarithmic axis, an exponential is straight: at half of the way it is half of the way down.
    drawn = ink(loss)
    first, middle, last = (drawn.at(share)[0] for share in (0.01, 0.5, 0.99))
    assert abs((first + last) / 2 - middle) <= 3
    assert last - first > drawn.height * 0.8
    assert loss.locator(".notes li").all_inner_texts() == [
        "1 point of loss without step left off",
        "2 points of eval_loss at or below 0 hidden: the axis is logarithmic",
    ]

    # The bounds are those of the file, and the rule lies where its value is.
    drawn, rule = ink(f1), ink(f1, "--error")
    high, _ = drawn.at(0.99)
    assert abs(high - drawn.height * 0.01) <= 4
    across = [ends for x, ends in rule.columns.items() if drawn.left <= x < drawn.left + drawn.width * 0.8]
    assert len(across) > drawn.width * 0.3
    assert all(abs(ends[0] - drawn.top - drawn.height / 2) <= 2 for ends in across)
    assert f1.locator(".legend li").nth(1).inner_text().split() == ["typed_f1", "no", "points", "yet"]

    assert recall.locator(".plot").inner_text() == "no points yet"
    assert recall.locator("canvas").count() == 0
    assert page.locator(".stats dt").all_inner_texts() == ["Samples/s", "loss, never"]
    stats = [re.sub(r"\s+", " ", text) for text in page.locator(".stats dd").all_inner_texts()]
    assert stats == ["134.5", "0.000109648 loss", "no points yet never"]


def test_without_a_layout_there_is_a_panel_per_key_against_step_and_a_new_key_gets_its_own(site, page):
    page.goto(site.run("plain", [{"loss": 1.0, "step": 3}, {"loss": 2.0, "step": 4}, {"lr": 0.1}]))
    panel(page, "lr")
    assert page.locator("figcaption").all_inner_texts() == ["loss", "step", "lr"]
    assert page.locator(".axis-x").all_inner_texts() == ["against step"] * 3
    assert len(ink(panel(page, "loss")).columns) > 300
    assert panel(page, "lr").locator(".notes").inner_text() == "1 point of lr without step left off"
    page.evaluate("window.same = true")
    before = ink(panel(page, "loss")).at(0.0)
    site.write("plain", [{"loss": -9.0, "step": 9, "new.key": 1}])
    expect(panel(page, "new.key").locator("canvas")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text("4")
    expect(panel(page, "loss").locator(".legend b")).to_have_text("-9")
    page.wait_for_function("document.querySelectorAll('canvas').length === 4")
    assert ink(panel(page, "loss")).at(0.0) != before
    assert page.evaluate("window.same"), "the page was loaded anew"


def test_a_run_that_writes_no_step_is_drawn_against_the_place_in_the_run(site, page):
    page.goto(site.run("places", [{"loss": float(at)} for at in range(5)]))
    panel(page, "loss")
    assert page.locator(".axis-x").inner_text() == "against the point's place in the run"


def test_gaps_are_not_joined_and_a_lone_point_is_seen(site, page):
    points = [{"step": step, "loss": 1.0 if step % 2 else 2.0} for step in range(1001)]
    for step in [*range(300, 450), *range(451, 600)]:
        del points[step]["loss"]
    page.goto(site.run("gaps", points))
    drawn = ink(panel(page, "loss"))
    for share in (0.2, 0.45, 0.7):
        assert not drawn.is_blank(share, within=3)
    for gap in (0.35, 0.4, 0.5, 0.55):
        assert drawn.is_blank(gap, within=5)


def test_one_spike_among_200_000_points_is_seen_and_looked_at_closely(site, page):
    points = [{"step": step, "loss": 1.0 + step % 2} for step in range(200_000)]
    points[123_456]["loss"] = 1000.0
    page.goto(site.run("spike", points))
    figure = panel(page, "loss")
    drawn = ink(figure)
    high, low = drawn.at(123_456 / 200_000, within=2)
    assert high < drawn.height * 0.1
    assert low > drawn.height * 0.9
    assert drawn.at(0.3)[0] > drawn.height * 0.9

    over = figure.locator(".u-over").bounding_box()
    with page.expect_response(re.compile(r"/telemetry/panels\?.*first=")) as asked:
        page.mouse.move(over["x"] + over["width"] * 0.610, over["y"] + 50)
        page.mouse.down()
        page.mouse.move(over["x"] + over["width"] * 0.625, over["y"] + 60, steps=3)
        page.mouse.up()
    (line,) = asked.value.json()["data"]["panels"][0]["lines"]
    assert len(line["x"]) > 300
    assert 121_000 < line["x"][0] < line["x"][-1] < 126_000
    whole = figure.get_by_role("button", name="whole")
    expect(whole).to_be_visible()
    whole.press("Enter")
    expect(whole).to_be_hidden()


def test_the_newest_attempts_values_stand_and_its_begin_is_marked(site, page):
    address = site.run("resumed", curve(loss=lambda _: 1.0))
    site.write("resumed", [{"step": step, "loss": 2.0} for step in range(50, 100)], attempt=2)
    page.goto(address)
    drawn, marks = ink(panel(page, "loss")), ink(panel(page, "loss"), "--resume")
    assert drawn.at(0.25)[0] > drawn.height * 0.8
    assert drawn.at(0.75)[1] < drawn.height * 0.2
    (at,) = {round((x - marks.left) / marks.width, 2) for x in marks.columns}
    assert abs(at - 50 / 99) < 0.02


def test_state_checks_files_and_log_stand_beside_it_and_stay_fresh(site, page):
    check = '[[check]]\nkey = "{}"\nop = ">="\nthreshold = 0.95\n'
    file = {"path": "src/train.py", "size_bytes": 2048, "blake3": "0" * 64}
    address = site.run(
        "beside",
        checks=check.format("f1") + check.format("recall"),
        command=["python", "src/train.py", "--name", "a b"],
        tree="ab" * 32,
        files=[file],
    )
    log = "".join(f"\x1b[32mline {at}\x1b[0m\n" for at in range(500)) + "1 %\r100 %\n<b>bold</b>\n"
    site.ask("POST", "/beside/log", {"attempt": 1, "offset": 0, "text": log})
    site.ask("PATCH", "/beside", {"state": "waiting", "reason": "no worker has taken it", "attempt": 1})
    page.goto(address)
    expect(page.locator("h1 .status")).to_have_text(["created", "waiting"])
    expect(page.locator(".reason")).to_have_text("no worker has taken it")
    expect(page.get_by_text("No points yet.")).to_be_visible()
    expect(page.get_by_text("python src/train.py --name 'a b'")).to_be_visible()
    shown = page.locator("pre.log")
    assert shown.inner_text().split("\n")[-3:] == ["line 499", "100 %", "<b>bold</b>"]
    assert shown.evaluate("box => box.scrollTop + box.clientHeight >= box.scrollHeight - 4")
    page.locator("summary", has_text="1 file").click()
    expect(page.get_by_role("cell", name="src/train.py")).to_be_visible()

    site.ask("POST", "/beside/log", {"attempt": 1, "offset": len(log), "text": "the last\n"})
    site.ask(
        "PATCH",
        "/beside",
        {"state": "done", "reason": None, "exit_code": 0, "result": '{"f1": 0.97, "recall": "x"}'},
    )
    expect(page.locator(".facts")).to_contain_text("done")
    verdicts = page.locator(".verdicts tbody tr")
    expect(verdicts).to_have_count(2)
    expect(verdicts.nth(0)).to_contain_text("f1 >= 0.95")
    expect(verdicts.nth(0)).to_contain_text("passed")
    expect(verdicts.nth(1)).to_contain_text("failed")
    expect(page.locator(".reason")).to_have_count(0)
    expect(shown).to_contain_text("the last")
    assert shown.inner_text().endswith("the last")
    assert shown.evaluate("box => box.scrollTop + box.clientHeight >= box.scrollHeight - 4")
    expect(page.get_by_role("cell", name="src/train.py")).to_be_visible()
    page.get_by_role("link", name="The whole log of attempt 1").click()
    page.wait_for_url(re.compile("/log"))
    assert page.locator("body").inner_text().startswith("\x1b[32mline 0\x1b[0m\n")


def test_tabs_are_reached_by_keyboard(site, page):
    address = site.run("keyboard", [{"loss": 1.0}])
    page.goto(address.removesuffix("/telemetry"))
    tabs = page.get_by_role("navigation", name="Views of the experiment").get_by_role("link")
    assert tabs.all_inner_texts() == ["Metrics", "Telemetry"]
    assert tabs.nth(0).get_attribute("aria-current") == "page"
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Telemetry":
            break
    page.keyboard.press("Enter")
    page.wait_for_url(address)
    assert tabs.nth(1).get_attribute("aria-current") == "page"
    panel(page, "loss")


def test_a_panel_is_read_and_looked_at_closely_by_keyboard(site, page):
    page.goto(site.run("keys", [{"step": step, "loss": step * 1.5} for step in range(11)]))
    plot = panel(page, "loss").locator(".plot")
    plot.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    tip = plot.get_by_role("status")
    expect(tip).to_contain_text("step 2")
    expect(tip).to_contain_text("3")
    with page.expect_response(re.compile(r"first=-0.5&last=4.5$")):
        page.keyboard.press("+")
    expect(panel(page, "loss").get_by_role("button", name="whole")).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel(page, "loss").get_by_role("button", name="whole")).to_be_hidden()


def test_the_widest_values_are_drawn(site, page):
    points = [{"a": 1e308, "b": 5e-324, "c": 2**64 - 1}, {"a": -1e308, "b": 1e308, "c": -(2**63)}]
    layout = '[[panel]]\ny = "a"\n[[panel]]\ny = "b"\nscale = "log"\n[[panel]]\ny = "c"\n'
    page.goto(site.run("wide", points, telemetry=layout))
    for key in "abc":
        assert len(ink(panel(page, key)).columns) > 300, key


def test_an_experiment_without_a_run_says_so_until_it_has_one(site, page):
    made = site.http.post("/api/v1/experiments", json={"slug": "alone"}).json()["data"]["experiment"]
    address = f"{site.url}/dashboard/experiments/{made['id']}/telemetry"
    page.goto(address)
    expect(page.get_by_text("No run has this name")).to_be_visible()
    assert site.run("alone", [{"loss": 1.0}]) == address
    panel(page, "loss")


def test_nothing_inline_runs_and_the_watch_over_it_works(browser, site):
    inline = "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"

    def try_it():
        with watched(context) as page:
            page.goto(site.url + "/sign-in")
            page.evaluate(inline)
            page.wait_for_function("window.violations.length > 0")
            found.append(page.evaluate("window.ran ?? 'not run'"))

    context, found = browser.new_context(), list[str]()
    with pytest.raises(AssertionError, match="inline script violates"):
        try_it()
    context.close()
    assert found == ["not run"]
