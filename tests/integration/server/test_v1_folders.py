"""The REST API's folders."""

import uuid
from urllib.parse import quote

import pytest

from tests.support.rest import Rest


@pytest.fixture
def rest(client):
    return Rest(client)


@pytest.fixture
def top(rest):
    """A folder of this test alone."""
    return rest.ask("POST", "/folders", {"name": f"top-{uuid.uuid4().hex[:8]}"})["folder"]


def make(rest, name, parent):
    return rest.ask("POST", "/folders", {"name": name, "parent_id": parent})["folder"]


def test_a_folder_shows_its_id_its_path_and_the_ids_above_it(rest, top):
    inner = make(rest, "lr", top["folder_id"])
    innermost = make(rest, "warm", inner["folder_id"])
    assert innermost == {
        "folder_id": innermost["folder_id"],
        "org_id": top["org_id"],
        "name": "warm",
        "parent_id_path": [top["folder_id"], inner["folder_id"]],
        "path_name": f"/{top['name']}/lr/warm",
    }
    assert str(uuid.UUID(innermost["folder_id"])) == innermost["folder_id"]


def test_the_list_takes_a_path_or_an_id(rest, top):
    inner = make(rest, "lr", top["folder_id"])
    assert rest.ask("GET", "/folders", path=f"/{top['name']}/lr")["folders"] == [inner]
    assert rest.ask("GET", "/folders", path=f"{top['name']}/lr/")["folders"] == [inner]
    assert rest.ask("GET", "/folders", path=inner["folder_id"])["folders"] == [inner]
    assert rest.ask("GET", "/folders", path="/nowhere")["folders"] == []
    listed = rest.ask("GET", "/folders")["folders"]
    assert top in listed
    assert inner in listed
    assert [one["path_name"] for one in listed] == sorted(one["path_name"] for one in listed)


def test_wherever_an_id_is_taken_a_path_is(rest, client, top, slug):
    path = top["path_name"]
    inner = make(rest, "lr", path)
    assert inner["parent_id_path"] == [top["folder_id"]]
    experiment = rest.experiment(slug, folder_id=inner["path_name"])
    assert experiment["folder"] == inner
    shown = rest.ask("GET", f"/folders/{quote(inner['path_name'], safe='')}")
    assert (shown["folder"], [one["id"] for one in shown["experiments"]]) == (inner, [experiment["id"]])
    moved = rest.ask(
        "PATCH", f"/folders/{quote(inner['path_name'], safe='')}", {"parent_id": "/", "name": slug}
    )
    assert moved["folder"]["path_name"] == f"/{slug}"
    # and with the event protocol
    client.data("folder.move", folderId=f"/{slug}", fromFolderId="/", toFolderId=path)
    client.data(
        "folderexperiment.move", experimentId=experiment["id"], fromFolderId=f"{path}/{slug}", toFolderId=path
    )
    assert rest.ask("GET", f"/experiments/{experiment['id']}")["experiment"]["folder"] == top


def test_the_root_is_shown_though_it_is_no_folder(rest, top, slug):
    experiment = rest.experiment(slug)
    root = rest.ask("GET", "/folders/%2F")
    assert root["folder"] is None
    assert top in root["folders"]
    assert experiment["id"] in [one["id"] for one in root["experiments"]]
    for method, body in (("PATCH", {"name": "x"}), ("DELETE", None)):
        assert rest.refused(method, "/folders/%2F", body) == (404, "folder_not_found")


def test_a_rename_and_a_move_in_one_request(rest, top):
    one, other = make(rest, "one", top["folder_id"]), make(rest, "other", top["folder_id"])
    make(rest, "one", other["folder_id"])
    clash = rest.send("PATCH", f"/folders/{one['folder_id']}", {"parent_id": other["folder_id"]})
    assert (clash.status_code, "folder_already_exists" in clash.text) == (409, True)
    moved = rest.ask(
        "PATCH", f"/folders/{one['folder_id']}", {"parent_id": other["folder_id"], "name": "two"}
    )["folder"]
    assert moved["path_name"] == f"{other['path_name']}/two"
    assert moved["folder_id"] == one["folder_id"]
    stays = rest.ask("PATCH", f"/folders/{one['folder_id']}", {"name": "two"})["folder"]
    assert stays == moved
    to_root = rest.ask(
        "PATCH", f"/folders/{one['folder_id']}", {"parent_id": None, "name": top["name"] + "x"}
    )
    assert to_root["folder"]["parent_id_path"] == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (422, "invalid_request")),
        ({"name": ""}, (422, "invalid_request")),
        ({"name": "a/b"}, (422, "invalid_request")),
        ({"name": "😀" * 101}, (422, "limit_exceeded")),
        ({"name": None}, (422, "invalid_request")),
        ({"parent_id": "nope"}, (404, "folder_not_found")),
        ({"parent_id": "/nope/there"}, (404, "folder_not_found")),
        ({"parent_id": 5}, (422, "invalid_request")),
        ({"name": "\ud800"}, (422, "invalid_request")),
        ([], (422, "invalid_request")),
    ],
)
def test_a_change_that_does_not_fit_is_refused(rest, client, top, body, expected):
    assert rest.refused("PATCH", f"/folders/{top['folder_id']}", body) == expected
    assert rest.ask("GET", f"/folders/{top['folder_id']}")["folder"] == top


def test_a_folder_is_never_under_itself(rest, top):
    inner = make(rest, "in", top["folder_id"])
    for target in (top["folder_id"], inner["folder_id"], inner["path_name"]):
        assert rest.refused("PATCH", f"/folders/{top['folder_id']}", {"parent_id": target}) == (409, "cycle")


def test_only_an_empty_folder_is_deleted(rest, top, slug):
    inner = make(rest, "in", top["folder_id"])
    experiment = rest.experiment(slug, folder_id=inner["folder_id"])
    for held in (top, inner):
        assert rest.refused("DELETE", f"/folders/{held['folder_id']}") == (409, "folder_not_empty")
    rest.ask("PATCH", f"/experiments/{experiment['id']}", {"folder_id": None})
    assert rest.ask("DELETE", f"/folders/{inner['folder_id']}")["folder"] == inner
    assert rest.refused("GET", f"/folders/{inner['folder_id']}") == (404, "folder_not_found")
    assert rest.ask("DELETE", f"/folders/{quote(top['path_name'], safe='')}")["folder"] == top
