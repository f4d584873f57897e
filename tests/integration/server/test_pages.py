"""The pages, and the chart that they draw."""

import re

import httpx
import pytest


@pytest.fixture
def filled(client, slug):
    experiment = client.open(slug, description="<script>alert(1)</script>", meta={"knobs": {"lr": 0.1}})
    experiment.send(
        experiment.event("start"),
        *[
            experiment.metric("train/loss", 1 / (step + 1), step, meta={"split": split})
            for split in ("train", '"><img src=x>')
            for step in range(50)
        ],
        experiment.event(
            "annotate", annotation="checkpoint /x/step-00000010", meta={"step": 10, "seconds": 0.1}
        ),
        experiment.event("annotate", annotation="resumed from /x\nknob lr 0.1 -> 0.2", meta={"step": 10}),
        experiment.event("annotate", annotation="a note"),
    )
    return experiment


def page(server, experiment):
    return httpx.get(f"{server.url}/dashboard/experiments/{experiment.id}", timeout=60)


def test_an_experiments_page_shows_what_it_is_and_where_it_stands(server, filled, slug):
    response = page(server, filled)
    assert response.status_code == 200
    text = response.text
    for expected in (
        *(slug, "running", "train/loss", "knob lr 0.1 -&gt; 0.2", "a note", "0.02"),
        *('data-kind="checkpoint" data-step="10"', 'data-kind="resume" data-step="10"'),
        '<figure data-metric="train/loss">',
    ):
        assert expected in text
    assert re.search(r"<dt>Step</dt><dd>49</dd>", text)


def test_a_page_offers_each_attempts_own_curve_once_there_are_two(server, client, filled, slug):
    offered = r'<label class="copies"><input type="checkbox" id="copies">'
    assert offered not in page(server, filled).text
    resumed = client.open(slug)
    resumed.send(resumed.event("start"))
    assert offered in page(server, filled).text


def test_nothing_that_was_sent_becomes_markup_and_scripts_come_from_us_alone(server, filled):
    response = page(server, filled)
    assert "<script>alert" not in response.text
    assert "<img" not in response.text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for reference in re.findall(r'(?:src|href)="([^"]+)"', response.text):
        assert reference.startswith("/dashboard")
        assert httpx.get(server.url + reference, timeout=60).status_code == 200


def test_the_bare_address_leads_to_the_list(server, filled, slug):
    assert httpx.get(server.url, timeout=60).headers["location"] == "/dashboard"
    page = httpx.get(server.url, follow_redirects=True, timeout=60)
    assert (page.status_code, page.url.path) == (200, "/dashboard")
    assert slug in page.text


def test_the_address_that_the_newest_collector_prints_leads_to_the_experiment(server, filled, slug):
    page = httpx.get(f"{server.url}/app/experiments/{filled.id}", follow_redirects=True, timeout=60)
    assert (page.status_code, page.url.path) == (200, f"/dashboard/experiments/{filled.id}")
    assert slug in page.text
    odd = httpx.get(f"{server.url}/app/experiments/a%3Fb%23c", timeout=60)
    assert odd.headers["location"] == "/dashboard/experiments/a%3Fb%23c"


def test_the_list_links_to_every_experiment(server, filled, slug):
    text = httpx.get(f"{server.url}/dashboard", timeout=60).text
    assert f'href="/dashboard/experiments/{filled.id}">{slug}</a>' in text


def test_pages_call_an_experiment_by_its_display_name_and_say_its_slug(server, client, filled, slug):
    address = f"/api/v1/experiments/{filled.id}"
    client.http.patch(address, headers=client.authorization, json={"display_name": "Best & last"})
    for text in (page(server, filled).text, httpx.get(f"{server.url}/dashboard", timeout=60).text):
        assert "Best &amp; last" in text
        assert slug in text


def test_a_failed_run_shows_its_error(server, filled):
    filled.send(filled.event("error", error="ValueError: <b>"))
    assert "ValueError: &lt;b&gt;" in page(server, filled).text


def test_an_experiment_that_is_not_there_is_a_page_too(server):
    response = httpx.get(f"{server.url}/dashboard/experiments/nothing", timeout=60)
    assert response.status_code == 404
    assert "<h1>404</h1>" in response.text


@pytest.mark.parametrize(
    "header", [{"host": "evil.example"}, {"x-forwarded-for": "192.0.2.1"}, {"via": "1.1 proxy"}]
)
def test_only_what_comes_from_the_machine_itself_needs_no_sign_in(server, header):
    page = httpx.get(server.url + "/dashboard?a=b", headers=header, timeout=60)
    assert (page.status_code, page.headers["location"]) == (303, "/sign-in?next=%2Fdashboard%3Fa%3Db")
    chart = httpx.get(server.url + "/api/experiments/x/chart?metric=m", headers=header, timeout=60)
    assert chart.status_code == 401


def chart(server, experiment, **query):
    return httpx.get(f"{server.url}/api/experiments/{experiment.id}/chart", params=query, timeout=60)


def test_a_chart_has_a_curve_for_each_partition_and_keeps_spikes_at_any_width(server, client, slug):
    experiment = client.open(slug)
    for first in range(0, 5000, 1000):
        experiment.send(
            *[
                experiment.metric("m", 99.0 if step == 1234 else 0.0, step)
                for step in range(first, first + 1000)
            ]
        )
    body = chart(server, experiment, metric="m", width=10).json()
    assert (body["metric"], body["partitionCount"]) == ("m", 1)
    (curve,) = body["partitions"]
    assert curve["step"] == list(range(499, 5000, 500))
    assert (curve["first"], max(curve["max"]), max(curve["last"])) == (0, 99.0, 0.0)
    experiment.send(experiment.metric("m", -1.0, 5000))
    assert chart(server, experiment, metric="m", width=10).json()["partitions"][0]["last"][-1] == -1.0


def test_a_chart_that_cannot_be_drawn_is_refused_in_the_one_shape(server, filled):
    assert chart(server, filled, metric="nothing").status_code == 404
    for query in (
        {"metric": "train/loss", "width": "0"},
        {"metric": "train/loss", "width": "x"},
        {"metric": "train/loss", "copies": "x"},
        {},
    ):
        response = chart(server, filled, **query)
        assert response.status_code == 400
        assert response.json()["data"] is None
