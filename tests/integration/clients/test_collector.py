"""The public collector, unmodified: what it is told is stored, whatever happens in between."""

import json
import sqlite3
import subprocess
import sys
import threading

import pytest
from syvain_metrics_collector import MetricsCollectorError

from tests.support.metrics_proxy import running_metrics_proxy
from tests.support.metrics_server import MetricsClient

EXTREMES = [-0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, -1e-300, 2**53 + 0.0]
PARTITIONS = [{}, {"split": "train"}, {"split": "Prüfung", "": ""}, {"rank": "0", "k\0": 'v"\\\n'}]

SECOND_PROCESS = """
import sys
from syvain_metrics_collector import Collector
key, host, slug = sys.argv[1:]
experiment = Collector(key, host=host).experiment(slug, "second", {"attempt": 2})
with experiment.run():
    for step in range(600, 1200):
        experiment.metric("loss", step + 0.5, step)
experiment.flush_or_raise()
print(experiment.id)
"""


def shown(client, slug):
    """The experiment of a slug as its record says."""
    level = client.data("foldertree.read")
    (found,) = [one["experimentId"] for one in level["experiments"] if one["slug"] == slug]
    return client.record(found)


def texts(client, experiment_id):
    """The annotations' texts, the oldest first."""
    found = client.data("query.annotations", experimentId=experiment_id)["annotations"]
    return [one["annotation"] for one in found][::-1]


def values(client, experiment_id, name="loss"):
    """The values of a metric without metadata, by step and then as they came."""
    return [value for _, _, value in client.points(experiment_id)[name, ()]]


def test_thousands_of_metrics_in_partitions_come_back_bit_for_bit(server, client, collecting, attached, slug):
    experiment = collecting(server).experiment(slug, "what it is", {"größe": [1, {"lr": 1e-5}], "none": None})
    told: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[int, int, float]]] = {}
    with experiment.run():
        for step in range(1500):
            for number, metadata in enumerate(PARTITIONS):
                value = EXTREMES[step % len(EXTREMES)] if step < 60 else step / (number + 3)
                experiment.metric("loss", value, step, metadata, timestamp=1_700_000_000_000 + step)
                key = "loss", tuple(sorted(metadata.items()))
                told.setdefault(key, []).append((step, 1_700_000_000_000 + step, value))
        experiment.metric("last ~ one", 1.0, 2**53 - 2)
        experiment.annotation("half-way", {"list": [1, 2.5, None], "step": "mine"}, step=750)
        experiment.annotation("€\0" + "x" * 15_998)
    assert experiment.flush_or_raise().delivered == 4 * 1500 + 6
    found = client.points(experiment.id)
    assert [(step, value) for step, _, value in found.pop(("last ~ one", ()))] == [(2**53 - 2, 1.0)]
    assert {key: repr(rows) for key, rows in found.items()} == {
        key: repr(rows) for key, rows in told.items()
    }, "repr tells -0.0 from 0.0"
    read_back = attached().execute(
        "SELECT metadata, step, epoch_ms(timestamp), value FROM m.series"
        " WHERE experiment_slug = ? AND metric_name = 'loss'",
        [slug],
    )
    assert sorted(
        repr((sorted(json.loads(metadata).items()), *point)) for metadata, *point in read_back.fetchall()
    ) == sorted(repr((list(key[1]), *point)) for key, points in told.items() for point in points)
    record = client.record(experiment.id)
    assert (record["slug"], record["description"], record["status"]) == (slug, "what it is", "done")
    assert record["meta"] == {"größe": [1, {"lr": 1e-5}], "none": None}
    annotations = client.data("query.annotations", experimentId=experiment.id)["annotations"]
    assert [(one["annotation"][:8], one["meta"]) for one in annotations[::-1]] == [
        ("experiment opened"[:8], {}),
        ("half-way", {"list": [1, 2.5, None], "step": 750}),
        ("€\0xxxxxx", {}),
    ]


def test_an_exception_ends_the_experiment_as_an_error(server, client, collecting, slug):
    experiment = collecting(server).experiment(slug)
    with pytest.raises(ValueError, match="boom"), experiment.run():
        raise ValueError("boom")
    experiment.flush_or_raise()
    record = client.record(experiment.id)
    assert record["status"] == "error"
    assert record["error"] == {"message": "ValueError: boom", "meta": {"error_type": "ValueError"}}


def test_values_that_are_not_finite_cost_only_themselves(server, client, collecting, slug, caplog):
    experiment = collecting(server).experiment(slug)
    for step, value in enumerate([1.0, float("nan"), 2.0, float("inf"), float("-inf"), 3.0]):
        experiment.metric("loss", value, step)
    experiment.flush_or_raise()
    assert [(step, value) for step, _, value in client.points(experiment.id)["loss", ()]] == [
        *((0, 1.0), (2, 2.0), (5, 3.0))
    ]
    assert caplog.text.count("dropped non-finite value") == 3


def test_a_second_process_continues_the_experiment_and_the_first_may_still_write(
    server, client, collecting, slug
):
    first = collecting(server).experiment(slug, "first", {"attempt": 1})
    first._start()
    for step in range(900):
        first.metric("loss", float(step), step)
    first.flush_or_raise()
    second = subprocess.run(
        [sys.executable, "-W", "error", "-c", SECOND_PROCESS, server.key, server.url, slug],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert second.returncode == 0, second.stderr
    assert second.stdout.strip() == first.id
    first.metric("loss", 5000.0, 5000)
    with pytest.raises(RuntimeError), first.run():
        raise RuntimeError("the first one's end is late")
    first.flush_or_raise()
    record = client.record(first.id)
    assert (record["description"], record["meta"]) == ("second", {"attempt": 2})
    assert texts(client, first.id) == ["experiment opened"] * 2
    rows = [(step, value) for step, _, value in client.points(first.id)["loss", ()]]
    assert rows == sorted(
        [(step, float(step)) for step in range(900)]
        + [(step, step + 0.5) for step in range(600, 1200)]
        + [(5000, 5000.0)]
    )
    newest = [(step, value) for step, _, value in client.points(first.id, copies="newest")["loss", ()]]
    assert [value for step, value in newest if 600 <= step < 1200] == [
        step + 0.5 for step in range(600, 1200)
    ]


def test_an_experiment_lands_in_its_folder_and_stays_where_somebody_moved_it(
    server, client, collecting, slug
):
    folder = client.data("folder.create", name=slug, parentFolderId=None)["folderId"]
    other = client.data("folder.create", name="other", parentFolderId=folder)["folderId"]

    def inside():
        (mine,) = [one for one in client.data("foldertree.read")["folders"] if one["folderId"] == folder]
        return [one["slug"] for one in mine["experiments"]], [
            one["slug"] for one in mine["folders"][0]["experiments"]
        ]

    experiment = collecting(server, folder_id=folder).experiment(slug)
    assert inside() == ([slug], [])
    client.data("folderexperiment.move", experimentId=experiment.id, fromFolderId=folder, toFolderId=other)
    again = collecting(server).experiment(slug, folder_id=folder)
    assert again.id == experiment.id
    assert inside() == ([], [slug])
    with pytest.raises(MetricsCollectorError):
        collecting(server, folder_id="00000000-0000-0000-0000-000000000000")


def test_a_wrong_key_fails_at_once(server, collecting):
    class Wrong:
        key, url = "slk_wrong", server.url

    with pytest.raises(MetricsCollectorError):
        collecting(Wrong)


@pytest.mark.parametrize("faults", [(429,), (503, "reset"), ("lose_reply", 408)])
def test_a_batch_that_failed_is_applied_once(client, proxy, collecting, slug, faults):
    experiment = collecting(client, host=proxy.url).experiment(slug)
    experiment.flush_or_raise()
    proxy.fail("experiment.metric", *faults)
    for step in range(700):
        experiment.metric("loss", float(step), step)
    assert experiment.flush_or_raise().delivered == 701
    batches = [one.body[0]["messageId"] for one in proxy.seen if one.events[:1] == ("experiment.metric",)]
    assert len(batches) == len({*batches}) + len(faults)
    assert values(client, experiment.id) == [float(step) for step in range(700)]


def test_an_open_that_failed_and_one_whose_answer_was_lost_are_one_experiment(
    server, client, proxy, collecting, slug
):
    collector = collecting(server, host=proxy.url)
    proxy.fail("experiment.open", 503, "lose_reply")
    experiment = collector.experiment(slug)
    experiment.flush_or_raise()
    assert shown(client, slug)["experimentId"] == experiment.id


def test_a_token_that_ends_soon_is_refreshed_before_it_is_used(server, client, proxy, collecting, slug):
    def shorten(what, reply):
        if what == "experiment.open":
            reply[0]["data"]["expiresAtMs"] -= 24 * 3_600_000 - 60_000
        return reply

    proxy.change = shorten
    experiment = collecting(server, host=proxy.url).experiment(slug)
    experiment.metric("loss", 1.0, 1)
    experiment.flush_or_raise()
    assert proxy.asked().count("experiment.tokenRefresh") == 1
    assert values(client, experiment.id) == [1.0]


@pytest.fixture
def owned(own_server, slug):
    """A client of the server that is stopped and killed."""
    client = MetricsClient(own_server.url, own_server.key)
    yield client
    client.close()
    if own_server.process is None:
        own_server.start()


@pytest.mark.parametrize("end", [("expires_ms = 1", 0), ("revoked_ms = 1", 1)])
def test_a_collector_goes_on_after_its_token_ended(own_server, owned, collecting, slug, end):
    """An expired token is refreshed; with a revoked one the experiment is opened again."""
    change, num_opens = end
    with running_metrics_proxy(own_server.url) as proxy:
        experiment = collecting(own_server, host=proxy.url).experiment(slug)
        experiment.metric("loss", 1.0, 1)
        experiment.flush_or_raise()
        own_server.stop()
        with sqlite3.connect(own_server.data / "metrics.sqlite3") as database:
            database.execute(
                f"UPDATE tokens SET {change} WHERE session_id IN (SELECT s.id FROM sessions s"
                " JOIN experiments e ON e.id = s.experiment_id WHERE e.uid = ?)",
                (experiment.id,),
            )
        database.close()
        own_server.start()
        proxy.asked()
        for step in range(2, 800):
            experiment.metric("loss", float(step), step)
        assert experiment.flush_or_raise().dropped == 0
        names = proxy.asked()
        assert names.count("experiment.tokenRefresh") == 1
        assert names.count("experiment.open") == num_opens
        assert values(owned, experiment.id) == [float(step) for step in range(1, 800)]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_of_the_server_costs_nothing(own_server, owned, collecting, slug, how):
    experiment = collecting(own_server, max_batch_items=100, flush_delay_seconds=0.01).experiment(slug)
    told = threading.Event()

    def tell():
        for step in range(6000):
            experiment.metric("loss", float(step), step)
            if step == 1000:
                told.set()

    thread = threading.Thread(target=tell)
    thread.start()
    told.wait()
    getattr(own_server, how)()
    thread.join()
    own_server.start()
    with experiment.run():
        pass
    experiment.flush_or_raise()
    assert values(owned, experiment.id) == [float(step) for step in range(6000)]
    assert owned.record(experiment.id)["status"] == "done"


def test_a_run_that_fell_silent_is_shown_quiet_and_runs_again_when_it_speaks(
    own_server, owned, collecting, slug
):
    """As after forty minutes of validation: no point is refused, and the status never said anything else."""
    experiment = collecting(own_server).experiment(slug)
    experiment._start()
    experiment.metric("loss", 1.0, 1, timestamp=1_700_000_000_000)
    experiment.flush_or_raise()

    def seen():
        address = f"/api/v1/experiments/{experiment.id}"
        data = owned.http.get(address, headers=owned.authorization).json()["data"]["experiment"]
        return data["status"], data["quiet"]

    assert seen() == ("running", False)
    own_server.stop()
    forty_minutes_ms = 40 * 60_000
    with sqlite3.connect(own_server.data / "metrics.sqlite3") as database:
        database.execute(
            "UPDATE experiments SET created_ms = created_ms - :ms, last_event_ms = last_event_ms - :ms,"
            " last_heartbeat_ms = last_heartbeat_ms - :ms WHERE uid = :uid",
            {"ms": forty_minutes_ms, "uid": experiment.id},
        )
    database.close()
    own_server.start()
    assert seen() == ("running", True)
    experiment.metric("loss", 2.0, 2)
    experiment.flush_or_raise()
    assert seen() == ("running", False)
    assert values(owned, experiment.id) == [1.0, 2.0]


def test_sixteen_processes_that_open_a_slug_at_once_write_to_one_experiment(own_server, owned, slug):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SECOND_PROCESS, own_server.key, own_server.url, slug],
            stdout=subprocess.PIPE,
        )
        for _ in range(16)
    ]
    ids = {process.communicate(timeout=120)[0].decode().strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 16
    (experiment_id,) = ids
    assert len(values(owned, experiment_id)) == 16 * 600
    assert texts(owned, experiment_id) == ["experiment opened"] * 16
    assert shown(owned, slug)["meta"] == {"attempt": 2}
