"""The REST API's runs."""

import json

import pytest

from tests.support.rest import Rest

LAYOUT = '[[panel]]\ny = "loss"\n'
CHECKS = '[[check]]\nkey = "f1"\nop = ">="\nthreshold = 0.95\n'


@pytest.fixture
def rest(client):
    return Rest(client)


def made(rest, slug, **more):
    return rest.ask("POST", "/runs", {"slug": slug, **more})


def lines(response):
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_new_run_has_every_field_and_an_experiment_of_its_name(rest, server, slug):
    run = made(rest, slug, telemetry=LAYOUT, checks=CHECKS, command=["python", "a b.py"], meta={"lr": 0.1})
    assert run == rest.ask("GET", f"/runs/{slug}") == rest.ask("GET", f"/runs/{run['id']}")
    experiment = rest.ask("GET", f"/experiments/{run['experiment_id']}")["experiment"]
    assert (experiment["slug"], experiment["status"], experiment["metadata"]) == (
        slug,
        "created",
        {"lr": 0.1},
    )
    assert run["page"] == experiment["url"] == f"{server.url}/dashboard/experiments/{experiment['id']}"
    assert (run["name"], run["state"], run["attempt"], run["folder"]) == (slug, "scheduled", 0, "/")
    assert run["layout"]["panels"][0]["y"] == ["loss"]
    assert run["checks"] == [{"key": "f1", "op": ">=", "threshold": 0.95}]
    assert run["telemetry"] == {"points": 0, "last_seq": 0, "keys": [], "dropped": {}, "attempts": []}


def test_points_are_appended_after_the_last_one_and_read_as_lines(rest, slug):
    made(rest, slug)
    batch = {
        "attempt": 1,
        "after_seq": 0,
        "points": [{"step": 1, "loss": 2.5}, {"step": 2}, {}],
        "dropped": {"not_json": 1},
        "cursor": {"offset": 9},
    }
    assert rest.ask("POST", f"/runs/{slug}/telemetry", batch) == {"last_seq": 3}
    response = rest.send("POST", f"/runs/{slug}/telemetry", batch)
    assert response.status_code == 409
    error = response.json()["error"]
    assert error["details"].startswith("code=seq_moved")
    cursor = rest.ask("GET", f"/runs/{slug}/telemetry/cursor")
    assert error["stored"] == cursor
    assert cursor == {
        "last_seq": 3,
        "attempt": 1,
        "cursor": {"offset": 9},
        "keys": ["step", "loss"],
        "points": 3,
        "dropped": {"not_json": 1},
    }
    response = rest.send("GET", f"/runs/{slug}/telemetry/points")
    assert response.text == (
        '{"seq": 1, "data": {"step": 1, "loss": 2.5}}\n{"seq": 2, "data": {"step": 2}}\n'
        '{"seq": 3, "data": {}}\n'
    )
    assert (response.headers["x-last-seq"], response.headers["x-run-final"]) == ("3", "false")
    assert lines(rest.send("GET", f"/runs/{slug}/telemetry/points", after=1, limit=1))[0]["seq"] == 2
    summary = rest.ask("GET", f"/runs/{slug}/telemetry/summary")
    assert summary["keys"] == [
        {"key": "step", "count": 2, "last": 2, "min": 1, "max": 2},
        {"key": "loss", "count": 1, "last": 2.5, "min": 2.5, "max": 2.5},
    ]


def test_an_end_is_judged_by_the_checks_of_the_result(rest, slug):
    made(rest, slug, checks=CHECKS)
    rest.ask("PATCH", f"/runs/{slug}", {"state": "running", "attempt": 1})
    ended = rest.ask(
        "PATCH", f"/runs/{slug}", {"state": "done", "attempt": 1, "exit_code": 0, "result": '{"f1": 0.97}'}
    )
    assert ended["verdicts"] == [
        {"key": "f1", "op": ">=", "threshold": 0.95, "value": 0.97, "passed": True, "reason": ""}
    ]
    assert (ended["state"], ended["exit_code"], ended["result"]) == ("done", 0, '{"f1": 0.97}')


def test_a_log_is_appended_and_read_from_a_byte_on(rest, slug):
    made(rest, slug)
    assert rest.ask("POST", f"/runs/{slug}/log", {"attempt": 1, "offset": 0, "text": "é\n"}) == {"offset": 3}
    assert rest.ask("POST", f"/runs/{slug}/log", {"attempt": 1, "offset": 3, "text": "two\n"}) == {
        "offset": 7
    }
    assert rest.refused("POST", f"/runs/{slug}/log", {"attempt": 1, "offset": 3, "text": "two\n"}) == (
        409,
        "offset_moved",
    )
    response = rest.send("GET", f"/runs/{slug}/log", after=3)
    assert response.text == "two\n"
    assert response.headers["x-log-size"] == "7"
