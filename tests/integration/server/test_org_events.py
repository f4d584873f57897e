"""What is asked with an organisation's key."""

import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.metrics_server import Experiment, MetricsClient


def code(reply):
    assert reply["event"] == "syvain.v2.error"
    assert set(reply["data"]) >= {"code", "message", "status", "retryable"}
    return reply["data"]["code"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_auth_status_says_whom_a_key_acts_for(client, version):
    response = client.http.get(f"/api/{version}/auth/status", headers=client.authorization)
    assert response.status_code == 200
    body = response.json()
    assert body["error"] is None
    assert body["data"]["auth"] == {"kind": "api_key", "role": "owner", "experiment_id": None}
    assert body["data"]["organization"]["name"] == "local"


@pytest.mark.parametrize("authorization", [None, "Bearer", "Bearer nonsense", "Basic abc", "Bearer \xff"])
def test_a_bad_key_is_401_in_the_one_error_shape(client, authorization):
    headers = [] if authorization is None else [(b"authorization", authorization.encode("latin-1"))]
    response = client.http.get("/api/v2/auth/status", headers=headers)
    assert response.status_code == 401
    body = response.json()
    assert body["data"] is None
    assert body["error"]["details"] == "code=unauthorized"
    assert response.headers["www-authenticate"] == "Bearer"


def test_open_gives_a_token_for_24_hours_and_says_what_the_server_takes(client, slug):
    before = time.time_ns() // 1_000_000
    opened = client.open(slug, description="d", meta={"a": 1.0}).opened
    assert str(uuid.UUID(opened["experimentId"])) == opened["experimentId"]
    assert type(opened["expiresAtMs"]) is int
    assert 0 <= opened["expiresAtMs"] - before - 86_400_000 < 60_000
    assert opened["acceptsTimestampMs"] is True


def test_a_new_record_has_every_key(client, slug):
    experiment = client.open(slug, description="eins", meta={"a": [1.0, "\x00", None], "seed": 2**127})
    record = client.record(experiment.id)
    assert set(record) >= {
        *("experimentId", "slug", "description", "meta", "status", "error", "createdAtMs", "updatedAtMs"),
        *("startedAtMs", "doneAtMs", "lastEventAtMs", "experimentRevision", "seriesRevision"),
    }
    assert (record["slug"], record["description"], record["status"]) == (slug, "eins", "created")
    assert repr(record["meta"]) == repr({"a": [1.0, "\x00", None], "seed": 2.0**127})
    assert [record[key] for key in ("error", "startedAtMs", "doneAtMs", "lastEventAtMs")] == [None] * 4


def test_opening_again_continues_and_the_newest_open_is_shown(client, slug):
    first = client.open(slug, description="one", meta={"a": 1})
    second = client.open(slug, description="two", meta={"b": 2})
    assert (first.id, first.token != second.token) == (second.id, True)
    record = client.record(first.id)
    assert (record["description"], record["meta"], record["slug"]) == ("two", {"b": 2}, slug)
    assert first.send(first.metric("loss", 1.0, 0))[0]["event"] == "syvain.v2.experiment.metricRecorded"
    assert second.send(second.metric("loss", 2.0, 0))[0]["event"] == "syvain.v2.experiment.metricRecorded"


def test_sixteen_that_open_one_slug_at_once_get_one_experiment(server, slug):
    def open_once(_):
        client = MetricsClient(server.url, server.key)
        experiment = client.open(slug)
        client.close()
        return experiment.id, experiment.token

    with ThreadPoolExecutor(16) as pool:
        opened = list(pool.map(open_once, range(16)))
    assert len({experiment_id for experiment_id, _ in opened}) == 1
    assert len({token for _, token in opened}) == 16


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"slug": ""}, "1 to 200"),
        ({"slug": "x" * 201}, "1 to 200"),
        ({"slug": "a", "description": "x" * 4001}, "4,000"),
        (
            {"slug": "a", "meta": {"k": "x" * 65_536}},
            "meta takes at most 65,536 bytes of compact JSON, got 65,544",
        ),
        ({"slug": "a", "meta": []}, "object"),
        ({"slug": 1}, "str"),
        ({}, "slug"),
    ],
)
def test_an_open_out_of_bounds_is_refused_with_the_reason(client, data, reason):
    reply = client.ask("experiment.open", **data)
    assert code(reply) in {"limit_exceeded", "invalid_event"}
    assert reason in reply["data"]["message"]
    assert (reply["data"]["status"], reply["data"]["retryable"]) == (422, False)


def test_a_slug_is_counted_in_utf16_units_and_may_be_anything(client):
    slug = "🎲/ \x00é" + uuid.uuid4().hex
    experiment = client.open(slug)
    assert client.record(experiment.id)["slug"] == slug
    assert code(client.ask("experiment.open", slug="🎲" * 101)) == "limit_exceeded"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("experiment.tokenRefresh", {"experimentId": "x", "experimentToken": "\ud800"}),
        ("query.experiment", {"experimentId": "\ud800"}),
        ("folder.create", {"name": "x", "parentFolderId": "\ud800"}),
        ("\ud800", {}),
        ("experiment.open", {"slug": "a", "meta": {"\ud800": 1}}),
        ("experiment.open", {"slug": "a", "meta": {"a": 10**400}}),
    ],
)
def test_what_no_strict_json_holds_costs_only_its_event_and_is_no_failure_of_ours(client, name, data):
    """A 5xx would be sent again for ever, and the events beside it with it."""
    events = [
        {"messageId": "a", "event": f"syvain.v2.{name}", "data": data},
        {"messageId": "b", "event": "syvain.v2.foldertree.read", "data": {}},
    ]
    response = client.http.post("/api/v2/events", content=json.dumps(events), headers=client.authorization)
    refused, tree = response.json()
    assert (response.status_code, code(refused)) == (200, "invalid_event")
    assert tree["event"] == "syvain.v2.foldertree.read"


def test_replies_come_in_the_order_of_the_requests_and_ids_may_repeat(client, experiment):
    names = ["foldertree.read", "query.annotations", "nonsense", "query.catalog"]
    events = [
        {"messageId": "same", "event": f"syvain.v2.{name}", "data": {"experimentId": experiment.id}}
        for name in names
    ]
    replies = client.post(events).json()
    assert [reply["correlationId"] for reply in replies] == ["same"] * 4
    assert [reply["event"].removeprefix("syvain.v2.") for reply in replies] == [
        *("foldertree.read", "query.annotations.result", "error", "query.catalog.result")
    ]
    assert len({reply["messageId"] for reply in replies}) == 4


def test_a_refreshed_token_writes_and_the_old_one_still_does(client, experiment):
    data = client.data(
        "experiment.tokenRefresh", experimentId=experiment.id, experimentToken=experiment.token
    )
    assert set(data) == {"experimentId", "experimentToken", "expiresAtMs"}
    assert data["experimentToken"] != experiment.token
    refreshed = Experiment(client, experiment.id, data["experimentToken"], {})
    for one in (refreshed, experiment):
        assert one.post([one.metric("loss", 1.0, 0)]).status_code == 200


def test_a_token_that_is_revoked_unknown_or_anothers_is_not_refreshed(client, slug, experiment):
    other = client.open(slug + "-other")
    revoked = client.open(slug)
    (reply,) = revoked.send(revoked.event("tokenRevoke"))
    assert reply["event"] == "syvain.v2.experiment.tokenRevoked"
    for token in (revoked.token, "nonsense", other.token):
        reply = client.ask("experiment.tokenRefresh", experimentId=experiment.id, experimentToken=token)
        assert (code(reply), reply["data"]["status"], reply["data"]["retryable"]) == (
            "token_not_found",
            404,
            False,
        )
    assert experiment.post([]).status_code == 200, "the other session's token is not touched"


def test_what_is_asked_for_and_not_there_is_named(client, experiment):
    missing = [str(uuid.uuid4()), "x"]
    ids = [missing[0], experiment.id, missing[1], experiment.id]
    data = client.data("query.experiments", experimentIds=ids)
    assert [record["experimentId"] for record in data["experiments"]] == [experiment.id]
    assert data["missingExperimentIds"] == missing
    data = client.data("query.revisions", experimentIds=ids)
    assert [set(one) for one in data["revisions"]] == [
        {"experimentId", "experimentRevision", "seriesRevision"}
    ]
    assert data["missingExperimentIds"] == missing
    for name in ("query.experiment", "query.catalog", "query.annotations"):
        assert code(client.ask(name, experimentId=missing[0])) == "experiment_not_found"


def test_a_bulk_query_takes_500_ids(client):
    ids = [str(number) for number in range(501)]
    assert client.data("query.revisions", experimentIds=ids[:500])["missingExperimentIds"] == ids[:500]
    assert code(client.ask("query.revisions", experimentIds=ids)) == "limit_exceeded"


def test_revisions_move_with_what_they_stand_for_and_stay_otherwise(client, experiment):
    def revisions():
        (one,) = client.data("query.revisions", experimentIds=[experiment.id])["revisions"]
        return one["experimentRevision"], one["seriesRevision"]

    states = [revisions()]
    metric = experiment.metric("loss", 1.0, 0)
    for event in (metric, experiment.event("annotate", annotation="n"), experiment.event("start"), metric):
        experiment.send(event)
        states.append(revisions())
    experiment.post([])
    states.append(revisions())
    assert states[1] == (states[0][0], states[0][1] + 1), "a point"
    assert states[2] == (states[1][0] + 1, states[1][1]), "an annotation"
    assert states[3] == (states[2][0] + 1, states[2][1]), "a status"
    assert states[4] == states[5] == states[3], "what was applied before, and a sign of life"


def test_the_catalog_has_names_keys_and_values(client, experiment):
    experiment.send(
        experiment.metric("loss", 1.0, 0, meta={"split": "valid", "rank": "0"}),
        experiment.metric("loss", 1.0, 0, meta={"split": "train"}),
        experiment.metric("acc", 1.0, 0),
    )
    assert client.data("query.catalog", experimentId=experiment.id) == {
        "experimentId": experiment.id,
        "series": [
            {"seriesName": "acc", "metadata": []},
            {
                "seriesName": "loss",
                "metadata": [
                    {"key": "rank", "values": ["0"]},
                    {"key": "split", "values": ["train", "valid"]},
                ],
            },
        ],
    }


class TestFolders:
    def create(self, client, parent=None):
        name = uuid.uuid4().hex[:8]
        return name, client.data("folder.create", name=name, parentFolderId=parent)["folderId"]

    def level(self, client, *names):
        level = client.data("foldertree.read")
        for name in names:
            (level,) = [folder for folder in level["folders"] if folder["name"] == name]
        return level

    def test_they_nest_and_hold_experiments(self, client, experiment, slug):
        outer, outer_id = self.create(client)
        inner, inner_id = self.create(client, outer_id)
        client.data(
            "folderexperiment.move", experimentId=experiment.id, fromFolderId=None, toFolderId=inner_id
        )
        assert self.level(client, outer, inner) == {
            "folderId": inner_id,
            "name": inner,
            "folders": [],
            "experiments": [{"experimentId": experiment.id, "slug": slug}],
        }
        assert str(uuid.UUID(inner_id)) == inner_id

    def test_a_name_is_taken_once_among_siblings(self, client):
        name, folder_id = self.create(client)
        reply = client.ask("folder.create", name=name)
        assert (code(reply), reply["data"]["status"]) == ("folder_already_exists", 409)
        assert reply["data"]["details"] == {"folderId": folder_id}
        inner = client.data("folder.create", name=name, parentFolderId=folder_id)["folderId"]
        _, sibling = self.create(client)
        move = {"folderId": inner, "fromFolderId": folder_id, "toFolderId": None}
        for taken in (
            client.ask("folder.rename", folderId=sibling, name=name),
            client.ask("folder.move", **move),
        ):
            assert (code(taken), taken["data"]["details"]) == (
                "folder_already_exists",
                {"folderId": folder_id},
            )
        elsewhere = client.ask("folder.move", **(move | {"fromFolderId": sibling}))
        assert (code(elsewhere), elsewhere["data"]["status"]) == ("folder_move_conflict", 409)

    def test_ids_survive_renames_and_moves(self, client):
        name, folder_id = self.create(client)
        target, target_id = self.create(client)
        client.data("folder.rename", folderId=folder_id, name=f"{name}-new")
        client.data("folder.move", folderId=folder_id, fromFolderId=None, toFolderId=target_id)
        assert self.level(client, target, f"{name}-new")["folderId"] == folder_id

    def test_a_folder_never_comes_to_lie_under_itself(self, client):
        _, outer = self.create(client)
        _, inner = self.create(client, outer)
        for target in (outer, inner):
            assert (
                code(client.ask("folder.move", folderId=outer, fromFolderId=None, toFolderId=target))
                == "cycle"
            )

    def test_an_experiment_that_is_elsewhere_stays_and_one_that_is_there_is_fine(self, client, experiment):
        (_, first), (_, second) = self.create(client), self.create(client)
        move = {"experimentId": experiment.id, "fromFolderId": None, "toFolderId": first}
        client.data("folderexperiment.move", **move)
        client.data("folderexperiment.move", **move)
        reply = client.ask("folderexperiment.move", **(move | {"toFolderId": second}))
        assert (code(reply), reply["data"]["status"]) == ("experiment_folder_move_conflict", 409)

    @pytest.mark.parametrize("name", ["", "a/b", "x" * 201])
    def test_a_bad_name_is_refused(self, client, name):
        assert code(client.ask("folder.create", name=name)) == "limit_exceeded"

    def test_folders_nest_no_deeper_than_readers_of_the_tree_go(self, client):
        """A tree deeper than that could be read by nobody, and with it no folder and no experiment."""
        _, top = self.create(client)
        parent = top
        for _ in range(31):
            _, parent = self.create(client, parent)
        reply = client.ask("folder.create", name="x", parentFolderId=parent)
        assert code(reply) == "limit_exceeded"
        assert "at most 32 deep, got 33" in reply["data"]["message"]
        _, outer = self.create(client)
        self.create(client, outer)
        reply = client.ask("folder.move", folderId=outer, fromFolderId=None, toFolderId=parent)
        assert code(reply) == "limit_exceeded"
        assert "got 34" in reply["data"]["message"]
        client.data("folder.move", folderId=outer, fromFolderId=None, toFolderId=top)
        client.data("foldertree.read")

    def test_a_folder_that_is_not_there_is_named(self, client):
        missing = str(uuid.uuid4())
        assert code(client.ask("folder.create", name="x", parentFolderId=missing)) == "folder_not_found"
        assert code(client.ask("folder.rename", folderId=missing, name="x")) == "folder_not_found"
