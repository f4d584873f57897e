"""Signing in and out, and what members, keys and views are, over the real protocol."""

import re
import time
from dataclasses import dataclass

import argon2
import httpx
import pytest

from infra.server.api.app import create_app
from infra.server.store import access, people, sign_in
from infra.server.store.schema import sign_ins
from infra.server.store.store import Store
from tests.support.served_app import served

PASSWORD = "correct horse battery"


@dataclass
class World:
    store: Store
    http: httpx.Client
    key: str
    now_ms: list[int]

    def ask(self, method, path, cookie=None, *, key=None, headers=None, **more):
        headers = dict(headers or {})
        if cookie is not None:
            headers |= {"cookie": cookie, "origin": self.origin}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        self.http.cookies.clear()
        return self.http.request(method, path, headers=headers, **more)

    def own(self, method, path, **more):
        response = self.ask(method, f"/api/v1/{path}", key=self.key, **more)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def refused(self, method, path, code, *, key=None, **more):
        response = self.ask(method, f"/api/v1/{path}", key=key or self.key, **more)
        assert f"code={code}" in response.json()["error"]["details"], response.text
        return response

    def member(self, email, role="viewer", password=PASSWORD):
        return self.own("POST", "members", json={"email": email, "role": role, "password": password})[
            "member"
        ]

    def sign_in(self, email, password=PASSWORD, **more):
        return self.ask("POST", "/api/v1/auth/sign-in", json={"email": email, "password": password, **more})

    def cookie(self, email, password=PASSWORD, **more):
        response = self.sign_in(email, password, **more)
        assert response.status_code == 200, response.text
        return response.headers["set-cookie"].partition(";")[0]

    @property
    def origin(self):
        return str(self.http.base_url).rstrip("/")


@pytest.fixture(autouse=True)
def cheap_hashes(request, monkeypatch):
    """Hashes of 10 microseconds, but for the test of how long they take."""
    if "one_time" not in request.node.name:
        quick = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
        monkeypatch.setattr(sign_in, "_hasher", lambda: quick)
    sign_in._nobodys.cache_clear()
    yield
    sign_in._nobodys.cache_clear()


@pytest.fixture
def world(address):
    now_ms = [1_700_000_000_000]
    store = Store(address, clock_ms=lambda: now_ms[0])

    def first(connection):
        organisation = access.create_organisation(connection, "ours", now_ms=0)
        people.add(
            connection,
            organisation.id,
            email="owner@localhost",
            name="Owner",
            role="owner",
            password_hash=None,
            now_ms=0,
        )
        return access.create_key(connection, organisation.id, "first", role="owner", now_ms=0)[1]

    key = store.write_now(first)
    app = create_app(store, keyless=False)
    with served(app) as url, httpx.Client(base_url=url, timeout=30) as http:
        yield World(store, http, key, now_ms)
    store.close()


def status(world, cookie):
    return world.ask("GET", "/api/v1/auth/status", cookie)


def test_a_sign_in_is_a_cookie_out_of_scripts_reach_until_it_expires_or_ends(world):
    member = world.member("a@example.com")
    response = world.sign_in("A@Example.com ")
    assert re.fullmatch(
        r"slugline=sls_[\w-]{43}; HttpOnly; Max-Age=1209600; Path=/; SameSite=lax",
        response.headers["set-cookie"],
    )
    assert "sls_" not in response.text
    cookie = response.headers["set-cookie"].partition(";")[0]
    shown = status(world, cookie).json()["data"]
    assert shown["auth"] == {"kind": "session", "role": "viewer", "experiment_id": None}
    assert (shown["person"]["id"], shown["person"]["email"]) == (member["id"], "a@example.com")
    world.now_ms[0] += sign_in.LIFETIME_MS
    assert status(world, cookie).status_code == 401
    again = world.cookie("a@example.com")
    out = world.ask("POST", "/api/v1/auth/sign-out", again)
    assert (out.status_code, 'slugline=""; ' in out.headers["set-cookie"]) == (200, True)
    assert status(world, again).status_code == 401
    secret = again.partition("=")[2].encode()
    hashes = world.store.read_now(lambda connection: connection.execute(sign_ins.select()).all())
    assert not any(secret in str(row).encode() for row in hashes)


def test_behind_tls_the_cookie_is_secure_and_bound_to_the_host(world):
    world.member("a@example.com")
    response = world.ask(
        "POST",
        "/api/v1/auth/sign-in",
        headers={"x-forwarded-proto": "https"},
        json={"email": "a@example.com", "password": PASSWORD},
    )
    assert response.headers["set-cookie"].startswith("__Host-slugline=sls_")
    assert "; Secure" in response.headers["set-cookie"]
    cookie = response.headers["set-cookie"].partition(";")[0]
    assert status(world, cookie).status_code == 401
    secure = world.ask("GET", "/api/v1/auth/status", headers={"x-forwarded-proto": "https", "cookie": cookie})
    assert secure.status_code == 200


def test_unknown_accounts_and_wrong_passwords_are_one_answer_after_one_time(world):
    world.member("a@example.com")
    world.own("POST", "members", json={"email": "none@example.com"})
    world.sign_in("warm@example.com", "up")
    times, texts = [], set()
    for email in ("a@example.com", "none@example.com", "nobody@example.com", "no address"):
        began = time.perf_counter()
        response = world.sign_in(email, "wrong password")
        times.append(time.perf_counter() - began)
        texts.add((response.status_code, response.text))
    assert len(texts) == 1
    assert min(times) > 0.02  # nobody was answered without a hash


def test_passwords_are_tried_ten_times_then_not_even_the_right_one_helps(world):
    world.member("a@example.com")
    for email in ("a@example.com", "nobody@example.com"):
        answers = [world.sign_in(email, "wrong").status_code for _ in range(11)]
        assert answers == [401] * 10 + [429], email
        late = world.sign_in(email)
        assert (late.status_code, 1 <= int(late.headers["retry-after"]) <= 60) == (429, True)
        assert "code=too_many_attempts" in late.json()["error"]["details"]


def test_the_right_password_is_never_throttled(world):
    world.member("a@example.com")
    assert [world.sign_in("a@example.com").status_code for _ in range(12)] == [200] * 12


@pytest.mark.parametrize(
    "sent", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}]
)
def test_another_site_cannot_sign_somebody_in(world, sent):
    world.member("a@example.com")
    response = world.ask(
        "POST",
        "/api/v1/auth/sign-in",
        headers=sent,
        json={"email": "a@example.com", "password": PASSWORD},
    )
    assert (response.status_code, "set-cookie" in response.headers) == (403, False)


# ---------------------------------------------------------------- the form


def form(world, to="/dashboard"):
    page = world.ask("GET", "/sign-in", params={"next": to})
    cookie = page.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    token = re.search(r'name="form" value="(\w+)"', page.text)
    onward = re.search(r'name="next" value="([^"]*)"', page.text)
    assert token is not None
    assert onward is not None
    return cookie.partition(";")[0], token[1], onward[1]


def test_the_form_signs_in_and_goes_on_to_the_page_that_was_asked_for(world):
    world.member("a@example.com")
    asked = world.ask("GET", "/dashboard?x=1")
    assert asked.status_code == 303
    cookie, token, onward = form(world, httpx.URL(asked.headers["location"]).params["next"])
    fields = {"email": "a@example.com", "password": PASSWORD, "form": token, "next": onward}
    done = world.ask("POST", "/sign-in", cookie, data=fields)
    assert (done.status_code, done.headers["location"]) == (303, "/dashboard?x=1")
    signed_in = next(
        one.partition(";")[0] for one in done.headers.get_list("set-cookie") if one.startswith("slugline=sls")
    )
    (ended,) = (one for one in done.headers.get_list("set-cookie") if one.startswith("slugline-form="))
    assert "Max-Age=0" in ended
    page = world.ask("GET", "/dashboard", signed_in)
    assert page.status_code == 200
    leaving = re.search(r'action="/sign-out"><input type="hidden" name="form" value="(\w+)"', page.text)
    assert leaving is not None
    assert world.ask("POST", "/sign-out", signed_in, data={"form": "0"}).status_code == 403
    out = world.ask("POST", "/sign-out", signed_in, data={"form": leaving[1]})
    assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    assert world.ask("GET", "/dashboard", signed_in).status_code == 303


def test_behind_tls_every_cookie_of_the_form_is_one_that_browsers_take(world):
    """A browser passes over a `__Host-` cookie without `Secure`, its end too."""
    world.member("a@example.com")
    tls = {"x-forwarded-proto": "https"}
    page = world.ask("GET", "/sign-in", headers=tls)
    token = re.search(r'name="form" value="(\w+)"', page.text)
    assert token is not None
    cookie = page.headers["set-cookie"].partition(";")[0]
    fields = {"email": "a@example.com", "password": PASSWORD, "form": token[1]}
    done = world.ask("POST", "/sign-in", cookie, data=fields, headers=tls)
    signed_in, ended = done.headers.get_list("set-cookie")
    assert ended.startswith("__Host-slugline-form=")
    for one in (page.headers["set-cookie"], signed_in, ended):
        assert one.startswith("__Host-")
        assert "; Secure" in one
        assert "; Path=/" in one


def test_a_form_that_is_not_ours_signs_nobody_in(world):
    world.member("a@example.com")
    cookie, token, _ = form(world)
    good = {"email": "a@example.com", "password": PASSWORD, "form": token}
    assert world.ask("POST", "/sign-in", None, data=good).status_code == 403
    assert world.ask("POST", "/sign-in", cookie, data={**good, "form": "0"}).status_code == 403
    assert world.ask("POST", "/sign-in", cookie, data={**good, "form": "é"}).status_code == 403
    wrong = world.ask("POST", "/sign-in", cookie, data={**good, "password": "wrong <b>"})
    assert (wrong.status_code, "the address or the password is wrong" in wrong.text) == (401, True)
    assert "wrong &lt;b" not in wrong.text
    assert "form-action 'self'" in wrong.headers["content-security-policy"]
    assert world.ask("POST", "/sign-in", cookie, content=b"\xff").status_code == 400


@pytest.mark.parametrize(
    "to",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\t/evil", "", "x"],
)
def test_the_form_leads_nowhere_else(world, to):
    assert form(world, to)[2] == "/dashboard"


# ---------------------------------------------------------------- members


def test_a_demotion_or_a_removal_counts_at_the_next_request(world):
    member = world.member("a@example.com", "member")
    cookie = world.cookie("a@example.com")
    save = {"name": "v", "setup": {}}
    assert world.ask("POST", "/api/v1/views", cookie, json=save).status_code == 200
    world.own("PATCH", f"members/{member['id']}", json={"role": "viewer"})
    assert world.ask("POST", "/api/v1/views", cookie, json=save).status_code == 403
    world.own("DELETE", f"members/{member['id']}")
    assert status(world, cookie).status_code == 401
    assert world.sign_in("a@example.com").status_code == 401


def test_the_last_owner_stays(world):
    owner = world.own("GET", "members")["members"][0]
    for method, more in (("PATCH", {"json": {"role": "member"}}), ("DELETE", {})):
        world.refused(method, f"members/{owner['id']}", "last_owner", **more)
    other = world.member("b@example.com", "owner")
    world.own("PATCH", f"members/{owner['id']}", json={"role": "viewer"})
    world.refused("DELETE", f"members/{other['id']}", "last_owner")


def test_the_last_way_to_manage_the_organisation_stays(world):
    owner = world.own("GET", "members")["members"][0]
    (first,) = world.own("GET", "keys")["keys"]
    world.refused("DELETE", f"keys/{first['id']}", "last_owner")
    world.own("PATCH", f"members/{owner['id']}", json={"password": PASSWORD})
    world.own("DELETE", f"keys/{first['id']}")
    cookie = world.cookie("owner@localhost")
    assert world.ask("GET", "/api/v1/keys", cookie).status_code == 200


def test_everybody_changes_their_own_name_and_password_and_nobody_elses(world):
    mine, other = world.member("a@example.com"), world.member("b@example.com")
    cookie, elsewhere = world.cookie("a@example.com"), world.cookie("a@example.com")
    path = f"/api/v1/members/{mine['id']}"
    assert world.ask("PATCH", path, cookie, json={"name": "Ada"}).json()["data"]["member"]["name"] == "Ada"
    assert world.ask("PATCH", path, cookie, json={"role": "owner"}).status_code == 403
    assert world.ask("PATCH", f"/api/v1/members/{other['id']}", cookie, json={"name": "x"}).status_code == 403
    new = {"password": "another long one"}
    assert world.ask("PATCH", path, cookie, json=new).status_code == 401
    assert world.ask("PATCH", path, cookie, json={**new, "current_password": "wrong"}).status_code == 401
    assert world.ask("PATCH", path, cookie, json={**new, "current_password": PASSWORD}).status_code == 200
    assert [status(world, one).status_code for one in (cookie, elsewhere)] == [401, 401]
    world.cookie("a@example.com", "another long one")


def test_a_person_of_two_organisations_is_nobodys_to_rename_and_signs_in_to_either(world):
    member = world.member("a@example.com", "viewer")

    def second(connection):
        organisation = access.create_organisation(connection, "theirs", now_ms=1)
        _, key = access.create_key(connection, organisation.id, "k", role="owner", now_ms=1)
        return organisation.uid, key

    uid, key = world.store.write_now(second)
    added = world.ask(
        "POST",
        "/api/v1/members",
        key=key,
        json={"email": "A@example.com", "role": "owner", "password": "their own choice", "name": "X"},
    ).json()["data"]["member"]
    assert (added["id"], added["name"]) == (member["id"], "a")
    assert world.sign_in("a@example.com", "their own choice").status_code == 401
    for change in ({"name": "X"}, {"password": "their own choice"}):
        world.refused("PATCH", f"members/{member['id']}", "forbidden", key=key, json=change)
    there = status(world, world.cookie("a@example.com", organization_id=uid)).json()["data"]
    assert (there["organization"]["name"], there["auth"]["role"]) == ("theirs", "owner")
    assert [one["name"] for one in there["person"]["organizations"]] == ["ours", "theirs"]
    assert world.sign_in("a@example.com", organization_id="nowhere").status_code == 401


def test_a_member_is_added_once_with_a_good_address_and_password(world):
    member = world.member("a@example.com")
    again = world.refused(
        "POST", "members", "member_already_exists", json={"email": "A@example.com", "name": "x"}
    )
    assert f"memberId={member['id']}" in again.json()["error"]["details"]
    for bad in (
        {"email": "no address"},
        {"email": "a@b c"},
        {"email": "c@example.com", "password": "too short"},
        {"email": "c@example.com", "role": "god"},
        {"email": "c@example.com\n"},
        {"email": "c@example.com", "name": "a\x00b"},
        {"email": "c@example.com", "name": "a\n"},
        {"email": "c@example.com", "passwort": "misspelt and lost"},
    ):
        refusal = world.refused("POST", "members", "invalid_request", json=bad)
        assert "misspelt and lost" not in refusal.text
        assert "too short" not in refusal.text


# ---------------------------------------------------------------- keys and views


def test_a_key_is_shown_once_used_and_revoked(world):
    made = world.own("POST", "keys", json={"name": "ci", "role": "viewer"})
    key = made["key"]
    assert re.fullmatch(r"slk_[\w-]{43}", made["secret"])
    assert (key["role"], key["last_used_at_ms"], key["revoked_at_ms"]) == ("viewer", None, None)
    world.now_ms[0] += 5
    assert world.ask("GET", "/api/v1/views", key=made["secret"]).status_code == 200
    listed = world.own("GET", "keys")
    assert listed["keys"][1] == {**key, "last_used_at_ms": world.now_ms[0]}
    assert made["secret"] not in str(listed)
    revoked = world.own("DELETE", f"keys/{key['id']}")["key"]
    assert revoked["revoked_at_ms"] == world.now_ms[0]
    assert world.ask("GET", "/api/v1/views", key=made["secret"]).status_code == 401
    world.now_ms[0] += 5
    assert world.own("DELETE", f"keys/{key['id']}")["key"] == revoked
    assert world.own("POST", "keys", json={"name": "ci"})["key"]["role"] == "member"


def test_a_repeated_request_for_a_key_keeps_no_secret(world):
    headers = {"idempotency-key": "same"}
    secrets = {world.own("POST", "keys", json={"name": "ci"}, headers=headers)["secret"] for _ in range(2)}
    assert len(secrets) == 2


def test_the_whole_organisation_opens_a_saved_view(world):
    setup = {"folders": ["5f0c"], "charts": [{"metric": "loss", "smooth": 0.0}], "text": "ü\u0000"}
    view = world.own("POST", "views", json={"name": "sweep", "setup": setup})["view"]
    assert view["setup"] == setup
    world.member("a@example.com")
    cookie = world.cookie("a@example.com")
    assert world.ask("GET", f"/api/v1/views/{view['id']}", cookie).json()["data"]["view"] == view
    world.refused("POST", "views", "view_already_exists", json={"name": "sweep", "setup": {}})
    other = world.own("POST", "views", json={"name": "other", "setup": {}})["view"]
    world.refused("PUT", f"views/{other['id']}", "view_already_exists", json={"name": "sweep", "setup": {}})
    world.now_ms[0] += 5
    saved = world.own("PUT", f"views/{view['id']}", json={"name": "sweep", "setup": {"a": 1}})["view"]
    assert (saved["setup"], saved["updated_at_ms"] - saved["created_at_ms"]) == ({"a": 1}, 5)
    assert [one["name"] for one in world.own("GET", "views")["views"]] == ["other", "sweep"]
    assert world.own("DELETE", f"views/{view['id']}")["view"] == saved
    world.refused("GET", f"views/{view['id']}", "view_not_found")
    large = {"name": "large", "setup": {"a": "x" * 65_536}}
    refusal = world.refused("POST", "views", "limit_exceeded", json=large)
    assert "field=setup; size=65544; limit=65536" in refusal.json()["error"]["details"]
    for bad in ({"name": "", "setup": {}}, {"name": "x", "setup": []}, {"name": "x"}):
        world.refused("POST", "views", "invalid_request", json=bad)
