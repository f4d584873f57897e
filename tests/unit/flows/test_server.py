"""What flows ask of a Prefect server: states of this round, and an address that is none."""

from __future__ import annotations

from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.deploy import deploy
from flows.flow_runs import ASKED, State, same_start, since_asked
from flows.parameters import TrainParameters
from flows.schedules import schedule_cron
from flows.server import connect
from runtime.errors import Rejected, Unavailable
from tests.support.ports import free_port

ROUNDS = [
    ("RUNNING CRASHED SCHEDULED RUNNING", "RUNNING CRASHED SCHEDULED RUNNING"),
    ("RUNNING FAILED SCHEDULED RUNNING CRASHED", "SCHEDULED RUNNING CRASHED"),
    ("RUNNING CANCELLING CANCELLED SCHEDULED CANCELLING", "SCHEDULED CANCELLING"),
    ("COMPLETED SCHEDULED RUNNING FAILED SCHEDULED", "SCHEDULED"),
    ("RUNNING CRASHED ASKED PENDING CRASHED SCHEDULED", "SCHEDULED PENDING CRASHED SCHEDULED"),
    ("", ""),
]


def state(word: str) -> State:
    kind, message = ("SCHEDULED", ASKED) if word == "ASKED" else (word.partition(":")[0], "")
    return State(id=word, type=kind, name=kind, timestamp=datetime(2027, 1, 1, tzinfo=UTC), message=message)


@pytest.mark.parametrize(("states", "since"), ROUNDS)
def test_a_round_begins_where_a_person_scheduled_the_run_and_not_where_rescue_did(states, since):
    assert [item.type for item in since_asked([state(word) for word in states.split()])] == since.split()


@pytest.mark.parametrize(
    ("states", "same"),
    [
        ("begun", True),
        ("begun RUNNING RUNNING", True),
        ("begun SCHEDULED RUNNING", False),
        ("RUNNING", False),
    ],
)
def test_a_start_lasts_through_waiting_and_running_and_no_longer(states, same):
    made = [state(word) for word in states.replace("begun", "RUNNING:begun").split()]
    assert same_start(made, "RUNNING:begun") is same


class Page(BaseHTTPRequestHandler):
    """What Prefect's pages answer to everything."""

    def do_GET(self):
        body = b"<!doctype html>"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - http.server's names

    def log_message(self, *_):
        pass


def test_an_address_without_api_is_named_as_the_mistake():
    """A user who copies the address of Prefect's pages got a traceback of a JSON decoder."""
    with HTTPServer(("127.0.0.1", 0), Page) as pages:
        Thread(target=pages.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{pages.server_port}"
        with (
            temporary_settings({PREFECT_API_URL: address}),
            pytest.raises(Rejected, match="PREFECT_API_URL must be a server's address with /api"),
            connect(retries=0) as server,
        ):
            server.runs(slug="a")
        pages.shutdown()


def cron() -> str:
    return schedule_cron(TrainParameters(experiment="m", slug="a"), title="m", cron="0 3 * * *")


@pytest.mark.parametrize("ask", [cron, lambda: deploy(pool="gpu")], ids=["cron", "deploy"])
def test_without_an_address_nothing_is_asked_of_a_server_of_prefects_own(ask):
    with (
        temporary_settings({PREFECT_API_URL: None}),
        pytest.raises(Rejected, match="PREFECT_API_URL is not set"),
    ):
        ask()


@pytest.mark.parametrize("ask", [cron, lambda: deploy(pool="gpu")], ids=["cron", "deploy"])
def test_a_server_that_is_away_is_said_in_one_line(ask):
    address = f"http://127.0.0.1:{free_port()}/api"
    with (
        temporary_settings({PREFECT_API_URL: address}),
        pytest.raises(Unavailable, match="does not answer") as caught,
    ):
        ask()
    assert "\n" not in str(caught.value)
