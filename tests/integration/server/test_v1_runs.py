"""The REST API's runs: made, launched again, told how they go, judged."""

import threading
import uuid

import pytest

from tests.support.metrics_server import MetricsClient
from tests.support.rest import Rest

LAYOUT = '[[panel]]\ny = "loss"\n'
CHECKS = '[[check]]\nkey = "f1"\nop = ">="\nthreshold = 0.95\n'
FILE = {"path": "a/b c.py", "size_bytes": 3, "blake3": "0" * 64}


@pytest.fixture
def rest(client):
    return Rest(client)


@pytest.fixture
def run(rest, slug):
    return rest.ask("POST", "/runs", {"slug": slug})


def made(rest, slug, **more):
    return rest.ask("POST", "/runs", {"slug": slug, **more})


def told(rest, run, **said):
    return rest.ask("PATCH", f"/runs/{run['id']}", said)


def test_a_new_run_has_every_field_and_an_experiment_of_its_name(rest, server, slug):
    run = made(
        rest,
        slug,
        telemetry=LAYOUT,
        checks=CHECKS,
        command=["python", "a b.py", "é"],
        meta={"lr": 0.1},
        tree="ab" * 32,
        files=[FILE],
        kind="train",
    )
    assert run == rest.ask("GET", f"/runs/{slug}") == rest.ask("GET", f"/runs/{run['id']}")
    experiment = rest.ask("GET", f"/experiments/{run['experiment_id']}")["experiment"]
    assert (experiment["slug"], experiment["status"], experiment["metadata"]) == (
        slug,
        "created",
        {"lr": 0.1},
    )
    assert run["page"] == experiment["url"] == f"{server.url}/dashboard/experiments/{experiment['id']}"
    assert (run["name"], run["state"], run["attempt"], run["folder"]) == (slug, "scheduled", 0, "/")
    assert (run["kind"], run["command"], run["tree"]) == ("train", ["python", "a b.py", "é"], "ab" * 32)
    assert run["layout"]["panels"][0]["y"] == ["loss"]
    assert run["checks"] == [{"key": "f1", "op": ">=", "threshold": 0.95}]
    assert run["telemetry"] == {"points": 0, "last_seq": 0, "keys": [], "dropped": {}, "attempts": []}
    unset = ("reason", "exit_code", "verdicts", "result", "started_ms", "ended_ms", "flow_run_id")
    assert [run[name] for name in unset] == [None] * len(unset)
    assert rest.ask("GET", f"/runs/{slug}/files") == {"tree": "ab" * 32, "files": [FILE]}


def test_a_run_to_which_nothing_was_shipped_has_no_files(rest, run):
    assert rest.ask("GET", f"/runs/{run['id']}/files") == {"tree": None, "files": None}


def test_runs_without_a_slug_are_counted_and_leave_out_a_name_that_is_taken(rest):
    first = rest.ask("POST", "/runs", {})["name"]
    number = int(first.removeprefix("run-"))
    rest.experiment(f"run-{number + 1}")
    assert rest.ask("POST", "/runs", {})["name"] == f"run-{number + 2}"
    last = rest.ask("POST", "/runs", {})
    assert last["name"] == f"run-{number + 3}"
    rest.ask("DELETE", f"/experiments/{last['experiment_id']}")
    assert rest.ask("POST", "/runs", {})["name"] == f"run-{number + 4}", "a name is never given twice"


def test_an_experiment_that_is_there_is_found_and_keeps_what_it_shows(rest, slug):
    experiment = rest.experiment(slug, description="d", metadata={"a": 1})
    run = made(rest, slug, meta={"b": 2})
    assert run["experiment_id"] == experiment["id"]
    after = rest.ask("GET", f"/experiments/{experiment['id']}")["experiment"]
    assert (after["description"], after["metadata"]) == ("d", {"a": 1})
    assert run["meta"] == {"b": 2}


def test_a_run_lies_in_its_experiments_folder(rest, slug):
    folder = rest.ask("POST", "/folders", {"name": slug})["folder"]
    run = made(rest, slug, folder=f"/{slug}")
    assert run["folder"] == f"/{slug}"
    (listed,) = rest.ask("GET", "/runs", name=slug)["runs"]
    assert listed["folder"] == f"/{slug}"
    rest.ask("PATCH", f"/experiments/{run['experiment_id']}", {"folder_id": None})
    assert rest.ask("GET", f"/runs/{slug}")["folder"] == "/"
    assert made(rest, slug, folder=folder["folder_id"])["folder"] == f"/{slug}"
    for path in ("/runs", "/runs/check"):
        assert rest.refused("POST", path, {"folder": "/nowhere"}) == (404, "folder_not_found")


def test_a_run_of_the_slug_is_launched_again_and_keeps_its_telemetry_and_its_attempts(rest, slug):
    run = made(rest, slug, telemetry=LAYOUT, checks=CHECKS, command=["one"], files=[FILE])
    batch = {"attempt": 2, "after_seq": 0, "points": [{"loss": 1}]}
    rest.ask("POST", f"/runs/{slug}/telemetry", batch)
    told(rest, run, state="failed", attempt=2, exit_code=1, reason="boom", result="{}", flow_run_id="f")
    again = made(rest, slug, command=["two"])
    assert (again["id"], again["attempt"], again["state"]) == (run["id"], 2, "scheduled")
    assert (again["command"], again["layout"], again["checks"]) == (["two"], None, None)
    assert again["telemetry"]["points"] == 1
    forgotten = ("reason", "exit_code", "verdicts", "result", "ended_ms", "flow_run_id")
    assert [again[name] for name in forgotten] == [None] * len(forgotten)
    assert rest.ask("GET", f"/runs/{slug}/files")["files"] is None
    old = {"attempt": 1, "state": "running"}
    assert rest.refused("PATCH", f"/runs/{slug}", old) == (409, "superseded")


def test_many_who_make_a_run_of_one_slug_at_once_make_one(server, slug):
    start, found = threading.Barrier(8), []

    def make(number):
        client = MetricsClient(server.url, server.key)
        start.wait()
        found.append(Rest(client).ask("POST", "/runs", {"slug": slug} if number % 2 else {}))
        client.close()

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run["id"] for run in found if run["name"] == slug}) == 1
    assert len({run["id"] for run in found if run["name"] != slug}) == 4
    assert len({run["name"] for run in found}) == 5


def test_a_run_that_is_made_again_under_one_key_is_the_same_run(rest):
    key = str(uuid.uuid4())
    first, second = (rest.ask("POST", "/runs", {"command": ["x"]}, key=key) for _ in range(2))
    assert first == second


def test_the_list_is_the_one_made_last_first_and_goes_on_before_an_id(rest, slug):
    ids = [made(rest, f"{slug}-{number}")["id"] for number in range(3)]
    newest = rest.ask("GET", "/runs", limit=2)["runs"]
    assert [run["id"] for run in newest] == ids[:0:-1]
    assert "layout" not in newest[0]
    assert rest.ask("GET", "/runs", before=ids[1], limit=1)["runs"][0]["id"] == ids[0]
    assert rest.refused("GET", "/runs", before="nothing") == (404, "run_not_found")


def test_a_name_with_a_slash_is_found_in_the_list(rest, slug):
    run = made(rest, f"a/{slug}")
    assert [one["id"] for one in rest.ask("GET", "/runs", name=f"a/{slug}")["runs"]] == [run["id"]]
    assert rest.ask("GET", f"/runs/{run['id']}")["name"] == f"a/{slug}"
    assert rest.ask("GET", "/runs", name="nothing of this name")["runs"] == []


def test_a_run_tells_how_it_goes(rest, run):
    running = told(rest, run, state="running", attempt=1, flow_run_id="f-1")
    assert (running["state"], running["attempt"], running["flow_run_id"]) == ("running", 1, "f-1")
    assert running["telemetry"]["attempts"][0]["after_seq"] == 0
    retrying = told(rest, run, state="retrying", reason="killed by SIGKILL", exit_code=137)
    assert (retrying["reason"], retrying["exit_code"], retrying["ended_ms"]) == (
        "killed by SIGKILL",
        137,
        None,
    )
    again = told(rest, run, state="running", attempt=2, reason=None)
    assert (again["started_ms"], again["exit_code"], again["reason"]) == (running["started_ms"], None, None)
    ended = told(rest, run, state="cancelled")
    assert ended["ended_ms"] >= ended["started_ms"]
    assert told(rest, run, state="cancelled")["ended_ms"] == ended["ended_ms"], "an end is told once"
    assert told(rest, run, state="scheduled")["ended_ms"] is None


def test_a_change_of_a_run_changes_the_record_of_its_experiment(rest, run):
    def revision():
        return rest.ask("GET", f"/experiments/{run['experiment_id']}")["experiment"]["experiment_revision"]

    before = revision()
    told(rest, run, state="running")
    assert revision() > before


def test_an_end_is_judged_by_the_checks_of_the_result(rest, slug):
    run = made(rest, slug, checks=CHECKS)
    told(rest, run, state="running", attempt=1)
    ended = told(rest, run, state="done", attempt=1, exit_code=0, result='{"f1": 0.97}')
    verdict = {"key": "f1", "op": ">=", "threshold": 0.95, "value": 0.97, "passed": True, "reason": ""}
    assert ended["verdicts"] == [verdict]
    assert (ended["state"], ended["exit_code"], ended["result"]) == ("done", 0, '{"f1": 0.97}')
    assert told(rest, run, state="running", attempt=2)["verdicts"] is None
    (verdict,) = told(rest, run, state="done", result="NaN, no JSON")["verdicts"]
    assert (verdict["passed"], verdict["value"]) == (False, None)
    assert "is not JSON" in verdict["reason"]


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_a_run_without_a_result_fails_its_checks_however_it_ends(rest, slug, state):
    (verdict,) = told(rest, made(rest, slug, checks=CHECKS), state=state)["verdicts"]
    assert (verdict["passed"], verdict["reason"]) == (False, "the run wrote no result")


def test_telemetry_judges_nothing(rest, slug):
    run = made(rest, slug, checks=CHECKS)
    batch = {"attempt": 1, "after_seq": 0, "points": [{"f1": 1.0}]}
    rest.ask("POST", f"/runs/{slug}/telemetry", batch)
    assert told(rest, run, state="done", result="{}")["verdicts"][0]["reason"] == "the result has no f1"


def test_files_are_checked_without_a_run(rest):
    found = rest.ask("POST", "/runs/check", {"telemetry": LAYOUT, "checks": CHECKS})
    assert found["layout"]["panels"][0]["scale"] == "linear"
    assert found["checks"][0]["key"] == "f1"
    assert rest.ask("POST", "/runs/check", {}) == {"layout": None, "checks": None}


@pytest.mark.parametrize("path", ["/runs/check", "/runs"])
def test_a_file_that_cannot_be_read_refuses_the_run_in_the_pages_words(rest, path):
    bad = '[[panel]]\ny = "a"\n[[panel]]\ny = "a"\nscael = "log"\n'
    response = rest.send("POST", path, {"telemetry": bad})
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": (
            'telemetry [[panel]] 2 has "scael", which is not one of title, x, y, scale, min, max, rule, wide'
        ),
        "details": "code=telemetry_unreadable",
    }
    response = rest.send("POST", path, {"checks": "[[check]]\nkey = 1\n"})
    assert (response.status_code, response.json()["error"]["details"]) == (400, "code=checks_unreadable")
    assert response.json()["error"]["message"].startswith("checks [[check]] 1 has ")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({"slug": ""}, "invalid_request", id="slug-empty"),
        pytest.param({"slug": "😀" * 101}, "limit_exceeded", id="slug-long"),
        pytest.param({"telemetry": "#" * 65_537}, "invalid_request", id="layout-long"),
        pytest.param({"telemetry": "#é" * 30_000}, "limit_exceeded", id="layout-long-in-bytes"),
        pytest.param({"checks": "#" * 65_537}, "invalid_request", id="checks-long"),
        pytest.param({"command": ["a" * 65_536]}, "limit_exceeded", id="command-long"),
        pytest.param({"command": ["a"] * 4097}, "invalid_request", id="command-of-many"),
        pytest.param({"command": ["\ud800"]}, "invalid_request", id="command-surrogate"),
        pytest.param({"tree": "../../etc"}, "invalid_request", id="tree"),
        pytest.param({"files": [FILE] * 50_001}, "invalid_request", id="files-many"),
        pytest.param({"files": [{**FILE, "blake3": "x"}]}, "invalid_request", id="file-digest"),
        pytest.param({"files": [{**FILE, "size_bytes": -1}]}, "invalid_request", id="file-size"),
        pytest.param({"files": [{**FILE, "path": "a" * 4097}]}, "invalid_request", id="file-path"),
        pytest.param({"meta": {"a": "b" * 65_536}}, "limit_exceeded", id="meta-long"),
        pytest.param({"kind": "sweep"}, "invalid_request", id="kind"),
    ],
)
def test_a_run_out_of_bounds_is_refused_and_not_made(rest, slug, body, code):
    assert rest.refused("POST", "/runs", {"slug": slug, **body}) == (422, code)
    assert rest.refused("GET", f"/runs/{slug}") == (404, "run_not_found")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        pytest.param({}, "invalid_request", id="nothing"),
        pytest.param({"state": "lost"}, "invalid_request", id="state"),
        pytest.param({"state": None}, "invalid_request", id="state-null"),
        pytest.param({"attempt": -1}, "invalid_request", id="attempt-negative"),
        pytest.param({"attempt": 10**6 + 1}, "invalid_request", id="attempt-large"),
        pytest.param({"exit_code": 2**31}, "invalid_request", id="exit-code"),
        pytest.param({"reason": "a" * 8001}, "invalid_request", id="reason"),
        pytest.param({"flow_run_id": "a" * 201}, "invalid_request", id="flow-run"),
        pytest.param({"result": "a" * 262_145}, "invalid_request", id="result"),
        pytest.param({"result": "é" * 131_073}, "limit_exceeded", id="result-in-bytes"),
    ],
)
def test_what_is_said_out_of_bounds_changes_nothing(rest, run, said, code):
    assert rest.refused("PATCH", f"/runs/{run['id']}", {"reason": "x", **said} if said else {}) == (422, code)
    assert rest.ask("GET", f"/runs/{run['id']}") == run


def test_a_text_with_a_nul_comes_back(rest, run):
    said = told(rest, run, reason="a\0b", state="done", result="\0\1")
    assert (said["reason"], said["result"]) == ("a\0b", "\0\1")


def test_a_run_goes_with_its_experiment(rest, run):
    rest.ask("DELETE", f"/experiments/{run['experiment_id']}")
    for path in ("", "/files", "/telemetry/cursor", "/telemetry/summary", "/telemetry/points", "/log"):
        assert rest.refused("GET", f"/runs/{run['id']}{path}") == (404, "run_not_found")
    assert rest.ask("GET", "/runs", name=run["name"])["runs"] == []
    again = made(rest, run["name"])
    assert again["id"] != run["id"]
