"""Event files become experiments, once: however often, however far, and whoever else published them."""

import random
import signal
import subprocess
import threading
import time
import uuid
from typing import Any

import pytest

from infra.metrics.api import Api
from infra.metrics.event_file import EventFile
from infra.metrics.importer import QUIET_MS, Importer
from runtime.events.kinds import Annotation, Done, Event, Metric, Open
from runtime.events.syvain.client import MetricsClient as RunClient
from runtime.events.syvain.settings import MetricsSettings
from runtime.events.syvain.target import SyvainTarget
from tests.support.metrics_proxy import running_metrics_proxy
from tests.support.waiting import wait_until

T0 = 1_700_000_000_000


def a_run(slug, *, first_step=0, last_step=50, began_ms=T0, done=True, failed=None):
    """The events of one attempt."""
    draw = random.Random(first_step)
    events: list[Event] = [Open(began_ms, slug, f"{slug}: a run", {"knobs": {"lr": 0.1}, "entry": "lm.py"})]
    for step in range(first_step, last_step):
        at_ms = began_ms + 10 * step
        events.append(Metric(at_ms, step, "train/loss", draw.random(), {"split": "train"}))
        if step % 10 == 0:
            events.append(Annotation(at_ms, step, f"checkpoint {step}", {"seconds": 0.5}))
            events.append(Metric(at_ms, step, "eval/loss", draw.random(), {"split": "eval"}))
    at_ms = began_ms + 10 * last_step
    if failed:
        events.append(Annotation(at_ms, last_step, f"failed: {failed}", {"error": failed}))
    return [*events, Done(at_ms, slug)] if done or failed else events


def write(path, *attempts):
    path.write_bytes(b"".join(event.encode() for events in attempts for event in events))
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def points(client, experiment_id):
    return {key: sorted(found) for key, found in client.points(experiment_id).items()}


def of(*attempts):
    found: dict[Any, Any] = {}
    for event in [event for events in attempts for event in events if isinstance(event, Metric)]:
        key = event.name, tuple(sorted(event.metadata.items()))
        found.setdefault(key, []).append((event.step, event.ts_ms, event.value))
    return {key: sorted(rows) for key, rows in found.items()}


def state(client, experiment_id):
    """Everything of an experiment that an import could change."""
    record = client.record(experiment_id)
    record.pop("lastHeartbeatAtMs")
    return record, points(client, experiment_id), client.data("query.annotations", experimentId=experiment_id)


def test_a_file_becomes_its_experiment(cli, client, name, file):
    run = a_run(name)
    (report,) = cli.ok("import", write(file, run), "--json").json
    assert (report["points_added"], report["annotations_added"], report["ending"]) == (55, 5, "done")
    record = client.record(report["experiment_id"])
    assert record["slug"] == name
    assert record["description"] == f"{name}: a run"
    assert record["meta"] == {"knobs": {"lr": 0.1}, "entry": "lm.py"}
    assert (record["status"], record["startedAtMs"], record["doneAtMs"]) == ("done", T0, T0 + 500)
    assert points(client, report["experiment_id"]) == of(run)
    annotations = client.data("query.annotations", experimentId=report["experiment_id"])["annotations"]
    assert [(one["annotation"], one["meta"], one["createdAtMs"]) for one in reversed(annotations)] == [
        (f"checkpoint {step}", {"seconds": 0.5, "step": step}, T0 + 10 * step) for step in range(0, 50, 10)
    ]


def test_importing_again_changes_nothing(cli, client, name, file):
    (report,) = cli.ok("import", write(file, a_run(name)), "--json").json
    before = state(client, report["experiment_id"])
    (again,) = cli.ok("import", file, "--json").json
    assert (again["points_added"], again["annotations_added"], again["already_there"]) == (0, 0, 60)
    assert state(client, report["experiment_id"]) == before


def test_a_file_that_grew_adds_what_is_new(cli, client, name, file):
    first, second = a_run(name, done=False), a_run(name, first_step=40, last_step=80, began_ms=T0 + 9_000)
    (report,) = cli.ok("import", write(file, first), "--json").json
    assert report["ending"] == "running"
    assert client.record(report["experiment_id"])["status"] == "running"
    (grown,) = cli.ok("import", write(file, first, second), "--json").json
    assert (grown["attempts"], grown["already_there"]) == (2, 60)
    assert points(client, report["experiment_id"]) == of(first, second)


def test_a_killed_and_resumed_run_keeps_both_copies(cli, client, name, file):
    first = a_run(name, done=False)
    second = a_run(name, first_step=40, last_step=80, began_ms=T0 + 9_000)
    (report,) = cli.ok("import", write(file, first, second), "--json").json
    assert points(client, report["experiment_id"]) == of(first, second)
    record = client.record(report["experiment_id"])
    assert (record["status"], record["startedAtMs"], record["doneAtMs"]) == ("done", T0, T0 + 9_800)


def test_what_the_run_itself_published_is_not_added_again(cli, server, client, name, file):
    """The real sender publishes the run; the file holds the same events."""
    run = a_run(name)
    target = SyvainTarget(MetricsSettings(server.url, server.key), session=uuid.uuid4().hex)
    target.check()
    target.write(run, [event.encode() for event in run])
    target.close(30)
    assert (target.unsent, sum(target.dropped.values())) == (0, 0)
    experiment_id = cli.ok("experiment", "show", name, "--json").json["id"]
    before = state(client, experiment_id)
    (report,) = cli.ok("import", write(file, run), "--json").json
    assert (report["points_added"], report["annotations_added"], report["already_there"]) == (0, 0, 60)
    assert state(client, experiment_id) == before


def test_what_the_run_could_not_publish_is_added_and_nothing_else_changes(cli, client, name, file):
    """A collector sent half of the points; the file has them all. Status and configuration stay its own."""
    run = a_run(name)
    experiment = client.open(name, description="as opened", meta={"x": 1.0})
    metrics = [event for event in run if isinstance(event, Metric)]
    sent = [
        experiment.metric(
            one.name,
            one.value,
            one.step,
            timestampMs=one.ts_ms,
            meta=one.metadata,
            message_id=uuid.uuid4().hex,
        )
        for one in metrics[::2]
    ]
    experiment.send(experiment.event("start"), *sent)
    (report,) = cli.ok("import", write(file, run), "--json").json
    assert (report["points_added"], report["already_there"]) == (len(metrics) // 2, len(sent))
    assert report["ending"].startswith("not told")
    assert points(client, experiment.id) == of(run)
    record = client.record(experiment.id)
    assert (record["description"], record["meta"], record["status"]) == ("as opened", {"x": 1.0}, "running")


@pytest.fixture
def importer(server):
    """An importer as it will be in five minutes, when nobody has spoken for a while."""
    settings = MetricsSettings(server.url, server.key)
    client = RunClient(settings)
    with Api(settings) as api:
        yield Importer(api, client, now_ms=lambda: time.time_ns() // 1_000_000 + 5 * QUIET_MS)
    client.close()


def test_the_ending_of_a_quiet_run_is_told(client, importer, name, file):
    experiment = client.open(name)
    experiment.send(experiment.event("start", timestampMs=T0))
    (report,) = importer.run(EventFile(write(file, a_run(name))))
    assert report.ending == "done"
    record = client.record(experiment.id)
    assert (record["status"], record["doneAtMs"]) == ("done", T0 + 500)


def test_an_ending_from_before_what_the_server_heard_is_not_told(client, importer, name, file):
    experiment = client.open(name)
    experiment.send(
        experiment.event("start", timestampMs=T0), experiment.metric("x", 1, 1, timestampMs=T0 + 9_000)
    )
    (report,) = importer.run(EventFile(write(file, a_run(name))))
    assert report.ending.startswith("not told")
    assert client.record(experiment.id)["status"] == "running"


def test_a_failed_run_is_an_error_with_its_text(cli, client, name, file):
    (report,) = cli.ok("import", write(file, a_run(name, failed="ValueError: no")), "--json").json
    record = client.record(report["experiment_id"])
    assert (report["ending"], record["status"]) == ("error", "error")
    assert record["error"] == {"message": "ValueError: no", "meta": {"error_type": "ValueError"}}


def test_values_that_are_not_finite_are_counted_and_the_rest_is_kept(cli, client, name, file):
    run = [Open(T0, name, "", {}), Metric(T0, 0, "a", float("inf"), {}), Metric(T0, 1, "a", 2.0, {})]
    (report,) = cli.ok("import", write(file, run), "--json").json
    assert (report["points_added"], report["not_finite"]) == (1, 1)
    assert points(client, report["experiment_id"]) == {("a", ()): [(1, T0, 2.0)]}


def test_what_the_server_refuses_is_said_and_the_rest_is_kept(cli, client, name, file):
    run = [Open(T0, name, "", {}), Metric(T0, 0, "x" * 300, 1.0, {}), Metric(T0, 1, "a", 2.0, {})]
    refused = cli("import", write(file, run), "--json")
    assert refused.code == 1
    (report,) = refused.json
    assert (report["points_added"], report["refused"]) == (1, {"limit_exceeded": 1})
    assert refused.line == "syvain-metrics: the server refused 1 events; everything else is there"


def test_an_experiment_is_put_into_a_folder_unless_it_is_in_one(cli, name, file):
    folder = cli.ok("folder", "create", f"/{name}").out.strip()
    cli.ok("import", write(file, a_run(name)), "--folder", f"/{name}")
    assert cli.ok("experiment", "show", name, "--json").json["folder"]["folder_id"] == folder


def test_two_slugs_in_one_file_are_two_experiments(cli, name, file):
    reports = cli.ok("import", write(file, a_run(name), a_run(f"{name}-2")), "--json").json
    assert [report["slug"] for report in reports] == [name, f"{name}-2"]


def test_a_mistake_in_one_file_stops_all_before_anything_is_sent(cli, name, file, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("no events\n")
    refused = cli("import", write(file, a_run(name)), bad)
    assert (refused.code, refused.out) == (2, "")
    assert f"{bad}:1 is no event" in refused.line
    assert cli("experiment", "show", name).code == 1


def test_an_import_killed_anywhere_is_finished_by_the_next(cli, client, server, name, file):
    """kill -9 as soon as the server has a little more of it; at the end everything is there exactly once.

    A killed one waits for an answer: of an import that runs on, all might have been there before the kill.
    """
    run = a_run(name, last_step=12_000)
    write(file, run)

    def num_there():
        tree = client.data("foldertree.read")["experiments"]
        ids = [one["experimentId"] for one in tree if one["slug"] == name]
        return sum(len(found) for id_ in ids for found in client.points(id_).values())

    def killed_at(enough):
        reached, killed = threading.Event(), threading.Event()

        def hold(_what, reply):
            if num_there() >= enough:
                reached.set()
                killed.wait(60)
            return reply

        with running_metrics_proxy(server.url) as proxy:
            proxy.change = hold
            cli.env["O41_METRICS_HOST"] = proxy.url
            process = cli.process("import", file, stdout=subprocess.DEVNULL)
            wait_until(lambda: process.poll() is not None or reached.is_set(), within_s=60, poll_s=0.01)
            process.kill()
            status = process.wait()
            killed.set()
        return status, num_there()

    kills = [killed_at(enough) for enough in (1, 3_000, 6_000, 9_000)]
    assert {status for status, _ in kills} == {-signal.SIGKILL}
    assert all(0 < num < 13_200 for _, num in kills), kills
    cli.env["O41_METRICS_HOST"] = server.url
    (report,) = cli.ok("import", file, "--json").json
    assert points(client, report["experiment_id"]) == of(run)
    assert client.record(report["experiment_id"])["status"] == "done"
    annotations = client.data("query.annotations", experimentId=report["experiment_id"])["annotations"]
    assert len(annotations) == 1_200
