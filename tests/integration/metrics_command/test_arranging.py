"""Folders, experiments, annotations, views, keys and members, from the command line against a real server."""

import json

import pytest


def test_a_folder_is_made_listed_moved_renamed_and_deleted(cli, name):
    outer = cli.ok("folder", "create", f"/{name}").out.strip()
    inner = cli.ok("folder", "create", f"/{name}/lr sweep").out.strip()
    paths = {one["id"]: one["path"] for one in cli.ok("folder", "list", "--json").json}
    assert (paths[outer], paths[inner]) == (f"/{name}", f"/{name}/lr sweep")
    assert cli.ok("folder", "move", inner, "/").line == f"moved {inner} to /"
    assert cli.ok("folder", "rename", "/lr sweep", f"{name}-2").out == ""
    assert {one["id"]: one["path"] for one in cli.ok("folder", "list", "--json").json}[inner] == f"/{name}-2"
    cli.ok("folder", "move", f"/{name}-2", outer)
    refused = cli("folder", "delete", outer, "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert "folder" in refused.line
    cli.ok("folder", "delete", inner, "--yes")
    cli.ok("folder", "delete", f"/{name}", "--yes")
    assert not {outer, inner} & {one["id"] for one in cli.ok("folder", "list", "--json").json}


def test_parents_are_made_where_they_are_asked_for(cli, name):
    refused = cli("folder", "create", f"/{name}/a/b")
    assert refused.code == 1
    made = cli.ok("folder", "create", "--parents", f"/{name}/a/b", "--json").json
    assert made["path"] == f"/{name}/a/b"
    assert cli.ok("folder", "create", "-p", f"/{name}/a/b").out.strip() == made["id"]
    again = cli("folder", "create", f"/{name}/a/b")
    assert (again.code, "already there" in again.line) == (1, True)


def test_an_experiment_is_found_shown_moved_renamed_and_deleted(cli, client, name):
    experiment = client.open(name, description="what it is", meta={"lr": 0.1, "steps": 8})
    experiment.send(experiment.event("start", timestampMs=1_000))
    folder = cli.ok("folder", "create", f"/f-{name}").out.strip()
    shown = cli.ok("experiment", "show", name).out.splitlines()
    fields = dict(line.split(maxsplit=1) for line in shown if "  " in line)
    assert fields["slug"] == name
    assert fields["description"] == "what it is"
    assert fields["meta"] == '{"lr":0.1,"steps":8}'
    assert fields["started"] == "1970-01-01 00:00:01Z"
    assert cli.ok("experiment", "show", experiment.id, "--json").json["slug"] == name
    cli.ok("experiment", "move", name, f"/f-{name}")
    cli.ok("experiment", "rename", experiment.id, "The one that worked")
    (listed,) = cli.ok("experiment", "list", "--folder", folder, "--json").json
    assert (listed["slug"], listed["display_name"]) == (name, "The one that worked")
    assert cli.ok("experiment", "list", "--folder", folder, "--status", "done", "--json").json == []
    assert [one["slug"] for one in cli.ok("experiment", "list", "--search", name[2:], "--json").json] == [
        name
    ]
    cli.ok("experiment", "move", name, "/")
    assert cli.ok("experiment", "show", name, "--json").json["folder"] is None
    assert cli.ok("experiment", "delete", name, "-y").out == ""
    assert cli("experiment", "show", name).line == (
        f"syvain-metrics: there is no experiment '{name}': syvain-metrics experiment list shows those that"
        " there are"
    )


def test_lists_go_on_past_a_page(cli, client, name, monkeypatch):
    monkeypatch.setattr("infra.metrics.find._PAGE", 3)
    for index in range(7):
        client.open(f"{name}-{index}")
    found = cli.ok("experiment", "list", "--search", name, "--json").json
    assert sorted(one["slug"] for one in found) == [f"{name}-{index}" for index in range(7)]
    assert len(cli.ok("experiment", "list", "--search", name, "--limit", "5", "--json").json) == 5


def test_a_slug_with_any_characters_is_found(cli, client, name):
    slug = f"{name}/é *[x] %2F\n"
    client.open(slug)
    assert cli.ok("experiment", "show", slug, "--json").json["slug"] == slug
    assert "\\n" in cli.ok("experiment", "list", "--search", name).out


def test_annotations_are_added_and_listed(cli, client, name):
    client.open(name)
    made = cli.ok("annotation", "add", name, "halved by hand", "--step", "4", "--meta", '{"lr": 0.05}')
    (listed,) = cli.ok("annotation", "list", name, "--json").json
    assert listed["id"] == made.out.strip()
    assert (listed["annotation"], listed["metadata"]) == ("halved by hand", {"lr": 0.05, "step": 4})
    assert '4     halved by hand  {"lr":0.05}' in cli.ok("annotation", "list", name).out


def test_a_view_is_saved_replaced_shown_and_deleted(cli, name, tmp_path):
    file = tmp_path / "view.json"
    file.write_text(json.dumps({"folders": [], "smoothing": 0.6}))
    saved = cli.ok("view", "save", name, file).out.strip()
    assert cli.ok("view", "save", name, "-", stdin='{"smoothing": 0.7}').out.strip() == saved
    assert cli.ok("view", "show", name).json == {"smoothing": 0.7}
    assert [one["id"] for one in cli.ok("view", "list", "--json").json if one["name"] == name] == [saved]
    assert name in cli.ok("view", "list").out
    cli.ok("view", "delete", saved, "--yes")
    assert cli("view", "show", name).code == 1


def test_a_key_is_made_used_listed_and_revoked(cli, name):
    secret = cli.ok("key", "create", name, "--role", "viewer").out.strip()
    cli.env["O41_METRICS_API_KEY"] = secret
    assert cli.ok("auth", "status", "--json").json["role"] == "viewer"
    refused = cli("folder", "create", f"/{name}")
    assert (refused.code, refused.line) == (
        1,
        "syvain-metrics: this needs the role member, yours is viewer",
    )
    assert secret not in refused.err


def test_a_revoked_key_opens_nothing(cli, server, name):
    secret = cli.ok("key", "create", name).out.strip()
    (key,) = [one for one in cli.ok("key", "list", "--json").json if one["name"] == name]
    assert key["role"] == "member"
    assert name in cli.ok("key", "list").out
    assert cli.ok("key", "revoke", key["id"]).out == ""
    cli.env["O41_METRICS_API_KEY"] = secret
    refused = cli("folder", "list")
    assert (refused.code, refused.out) == (1, "")
    assert f"Metrics at {server.url} refuses the key: syvain-metrics auth login saves another" in refused.line


def test_a_member_is_added_given_a_role_and_a_password_and_removed(cli, name):
    email = f"{name}@example.com"
    cli.ok("member", "add", email, "--name", "Ann", stdin="a long enough password\n")
    assert [email, "Ann", "member", "set"] in [row[:4] for row in cli.ok("member", "list").rows]
    assert cli.ok("member", "role", email.upper(), "viewer").line == f"{email} is viewer now"
    cli.ok("member", "password", email, stdin="another long password\n")
    (member,) = [one for one in cli.ok("member", "list", "--json").json if one["email"] == email]
    assert member["role"] == "viewer"
    cli.ok("member", "remove", member["id"], "--yes")
    assert cli("member", "role", email, "owner").line.startswith("syvain-metrics: nobody is called")


@pytest.mark.parametrize("group", ["folder", "experiment", "key", "member", "view"])
def test_a_list_is_one_json_document(cli, group):
    assert isinstance(cli.ok(group, "list", "--json").json, list)
