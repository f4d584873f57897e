"""Statuses over attempts: who may say that a run ended, and whose copy of a step counts."""

import uuid

import pytest


def chart(client, experiment, **query):
    response = client.http.get(
        f"/api/experiments/{experiment.id}/chart",
        params={"metric": "loss", **query},
        headers=client.authorization,
    )
    return response.json()


def value_at(client, experiment, step):
    (partition,) = chart(client, experiment)["partitions"]
    return partition["last"][partition["step"].index(step)]


def test_a_run_goes_from_created_over_running_to_done_with_its_times(client, experiment):
    experiment.send(experiment.event("start", timestampMs=1_000), experiment.event("done", timestampMs=2_000))
    record = client.record(experiment.id)
    assert [record[key] for key in ("status", "startedAtMs", "doneAtMs")] == ["done", 1_000, 2_000]


@pytest.mark.parametrize(("status", "data"), [("done", {}), ("error", {"error": "E: x"})])
def test_a_start_after_an_end_runs_again_and_keeps_the_first_start(client, experiment, slug, status, data):
    experiment.send(experiment.event("start", timestampMs=1_000), experiment.event(status, **data))
    resumed = client.open(slug)
    assert client.record(experiment.id)["status"] == status, "opening alone changes no status"
    resumed.send(resumed.event("start", timestampMs=3_000))
    record = client.record(experiment.id)
    assert [record[key] for key in ("status", "error", "startedAtMs", "doneAtMs")] == [
        *("running", None, 1_000, None)
    ]


@pytest.mark.parametrize("ending", [("done", {}), ("error", {"error": "E: late"})])
def test_a_late_ending_of_a_replaced_attempt_changes_no_status(client, experiment, slug, ending):
    name, data = ending
    experiment.send(experiment.event("start"))
    resumed = client.open(slug)
    resumed.send(resumed.event("start"))
    before = client.record(experiment.id)
    (reply,) = experiment.send(experiment.event(name, **data))
    assert reply["event"] != "syvain.v2.error", "it is stored"
    after = client.record(experiment.id)
    assert [after[key] for key in ("status", "error", "doneAtMs")] == ["running", None, None]
    assert after["lastEventAtMs"] >= before["lastEventAtMs"]
    assert after["experimentRevision"] == before["experimentRevision"] + 1, "it shows when it was last heard"
    resumed.send(resumed.event("done"))
    assert client.record(experiment.id)["status"] == "done"


def test_an_attempt_that_only_opened_does_not_replace_the_one_that_runs(client, experiment, slug):
    experiment.send(experiment.event("start"))
    client.open(slug)
    experiment.send(experiment.event("done"))
    assert client.record(experiment.id)["status"] == "done"


def test_clients_with_ids_of_their_own_are_told_apart_by_their_tokens(client, slug):
    first, second = client.open(slug), client.open(slug)
    ids = iter(f"{number:032x}" for number in range(100))
    for one in (first, second):
        one.send(one.event("start", message_id=next(ids)))
    first.send(first.event("done", message_id=next(ids)))
    assert client.record(first.id)["status"] == "running"
    second.send(second.event("done", message_id=next(ids)))
    assert client.record(first.id)["status"] == "done"


def test_both_copies_of_a_repeated_step_are_kept_and_the_curve_is_the_newest_attempts(
    client, experiment, slug
):
    experiment.send(*[experiment.metric("loss", float(step), step) for step in range(6)])
    resumed = client.open(slug)
    resumed.send(*[resumed.metric("loss", step + 0.5, step) for step in range(4, 8)])
    rows = client.points(experiment.id)["loss", ()]
    assert [(step, value) for step, _, value in rows] == [
        *[(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (4, 4.5)],
        *[(5, 5.0), (5, 5.5), (6, 6.5), (7, 7.5)],
    ]
    assert [value_at(client, experiment, step) for step in (3, 4, 5, 7)] == [3.0, 4.5, 5.5, 7.5]


def test_a_chart_shows_each_attempts_own_copy_when_asked(client, experiment, slug):
    experiment.send(
        experiment.event("start"), *[experiment.metric("loss", float(step), step) for step in range(6)]
    )
    resumed = client.open(slug)
    resumed.send(resumed.event("start"), *[resumed.metric("loss", step + 0.5, step) for step in range(4, 8)])
    first, second = chart(client, experiment, copies="all")["partitions"]
    assert (first["attempt"], first["step"], first["last"]) == (1, [*range(6)], [0, 1, 2, 3, 4, 5])
    assert (second["attempt"], second["step"], second["last"]) == (2, [4, 5, 6, 7], [4.5, 5.5, 6.5, 7.5])
    (one,) = chart(client, experiment, copies="newest")["partitions"]
    assert one["last"] == [0, 1, 2, 3, 4.5, 5.5, 6.5, 7.5]


def test_what_a_resume_delivers_for_a_machine_that_died_counts_as_the_older_attempts(client, slug):
    """The dead attempt never reached the server; its points arrive after the resume's own copy of a step."""
    dead, alive = uuid.uuid4().hex, uuid.uuid4().hex
    resumed = client.open(slug)
    resumed.send(
        resumed.metric("loss", 1.0, 3, message_id=f"{dead}.4"),
        resumed.event("start", message_id=f"{alive}.0"),
        resumed.metric("loss", 2.0, 5, message_id=f"{alive}.1"),
        resumed.metric("loss", 1.0, 5, message_id=f"{dead}.5"),
    )
    assert value_at(client, resumed, 5) == 2.0
    assert value_at(client, resumed, 3) == 1.0
    late = client.open(slug)
    late.send(late.event("done", message_id=f"{dead}.6"))
    assert client.record(resumed.id)["status"] == "running", (
        "it began before the one that passed its events on"
    )


def test_a_process_that_opens_again_stays_as_old_as_it_is(client, experiment, slug):
    """Its token was refused, so it opens and starts again; a newer attempt has begun meanwhile."""
    start = experiment.event("start")
    experiment.send(start)
    newer = client.open(slug)
    newer.send(newer.event("start"), newer.metric("loss", 2.0, 1))
    again = client.open(slug, sender=experiment.sender)
    again.send(start)
    again.sequence = 1
    again.send(again.metric("loss", 1.0, 1), again.event("done"))
    assert client.record(experiment.id)["status"] == "running"
    assert value_at(client, experiment, 1) == 2.0


def test_attempts_are_ordered_as_they_opened_not_as_their_first_events_came(client, slug):
    older, newer = client.open(slug), client.open(slug)
    newer.send(newer.event("start"), newer.metric("loss", 2.0, 1))
    older.send(older.event("start"), older.metric("loss", 1.0, 1))
    assert value_at(client, newer, 1) == 2.0


def test_an_older_attempt_that_starts_late_does_not_take_a_running_run(client, experiment, slug):
    resumed = client.open(slug)
    resumed.send(resumed.event("start"))
    experiment.send(experiment.event("start"), experiment.event("done"))
    assert client.record(experiment.id)["status"] == "running"
