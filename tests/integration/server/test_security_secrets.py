"""No secret in what the server says to its log, in an error, an address or a metric."""

import re
import sqlite3

import httpx

from tests.support.metrics_server import MetricsClient, running_server

PASSWORD = "a password that is nowhere else"


def test_no_secret_is_in_the_log_or_in_any_answer_but_the_one_that_makes_it(tmp_path):
    """Good and bad secrets in every place, and a database that fails in between."""
    with running_server(tmp_path / "data") as server:
        client = MetricsClient(server.url, server.key)
        http, owner = client.http, client.authorization
        experiment = client.open("run")
        experiment.send(experiment.event("start"))
        made = http.post("/api/v1/keys", headers=owner, json={"name": "k"}).json()["data"]["secret"]
        member = {"email": "a@example.com", "password": PASSWORD}
        http.post("/api/v1/members", headers=owner, json=member).raise_for_status()
        signed_in = http.post("/api/v1/auth/sign-in", json=member)
        cookie = signed_in.cookies["slugline"]
        http.cookies.clear()
        secrets = [
            server.key,
            experiment.token,
            made,
            PASSWORD,
            cookie,
            "slk_wrong-secret",
            "wrong-pass-word",
        ]
        answers = [http.get("/metrics"), http.get("/dashboard"), http.get("/api/v1/keys", headers=owner)]
        for secret in secrets:
            bearer = {"authorization": f"Bearer {secret}"}
            answers += [
                http.get("/api/v1/auth/status", headers=bearer),
                http.post("/api/v2/events", headers=bearer, content=secret.encode()),
                http.post(f"/api/v2/experiments/{experiment.id}/events", headers=bearer, json=[secret]),
                http.get("/api/v1/auth/status", headers={"cookie": f"slugline={secret}"}),
                http.get("/dashboard", headers={"authorization": f"Basic {secret}"}),
                http.post("/api/v1/auth/sign-in", json={"email": "b@example.com", "password": secret}),
                http.post("/api/v1/auth/sign-in", json={"email": "b@example.com", "password": [secret]}),
                http.post("/sign-in", data={"password": secret, "form": secret}),
                client.post([refresh(experiment.id, secret + "x")]),
            ]
        with sqlite3.connect(server.data / "metrics.sqlite3", isolation_level=None) as lock:
            lock.execute("BEGIN IMMEDIATE")
            answers += [
                http.post("/api/v1/keys", headers=owner, json={"name": "k"}),
                experiment.post([experiment.metric("m", 1.0, 1)]),
            ]
            assert [one.status_code for one in answers[-2:]] == [503, 503]
            lock.execute("ROLLBACK")
        lock.close()
        http.cookies.clear()
        answers.append(httpx.get(f"{server.url}/metrics", timeout=60))
        client.close()
    said = server.log.read_text() + "".join(one.text + str(one.headers) for one in answers)
    assert "a commit failed" in said
    for secret in secrets:
        assert secret not in said
        assert secret[-12:] not in re.sub(r"slugline(-form)?=\S+", "", said)


def refresh(experiment_id, token):
    return {
        "messageId": "0",
        "event": "syvain.v2.experiment.tokenRefresh",
        "data": {"experimentId": experiment_id, "experimentToken": token},
    }
