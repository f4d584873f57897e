"""A run's page in Metrics, kept by its flow process: against a real server, which may be away."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from flows import run_page
from flows.background import Every
from flows.cli import cancel
from flows.endings import Action, Decision
from flows.ledger import Entry, Ledger
from flows.run_page import RESULT, RunPage, report_end
from flows.run_writer import MAX_RESULT_BYTES, Record, RunWriter, TelemetryDestination
from runtime.checkpoints.memory import MemoryStore
from runtime.events.syvain.settings import metrics_settings
from runtime.telemetry.cursor import Cursor
from runtime.telemetry.destination import Batch, Refused
from tests.support.metrics_server import MetricsServer, running_server
from tests.support.one_run import OneRun
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(150)

CHECKS = '[[check]]\nkey = "f1"\nop = ">"\nthreshold = 0.5\n'
DONE = Decision(Action.COMPLETE, "done")


class Site:
    """A Metrics server, and pages of runs in it."""

    def __init__(self, server: MetricsServer, folder: Path) -> None:
        self.server, self.folder, self.store = server, folder, MemoryStore()
        self.said: list[str] = []
        self.log, self.telemetry = folder / "log", folder / "telemetry.jsonl"

    @property
    def environment(self) -> dict[str, str]:
        return {"O41_METRICS_HOST": self.server.url, "O41_METRICS_API_KEY": self.server.key}

    def page(self, slug: str, **more: Any) -> RunPage:
        record = Record(slug=slug, kind="command", command=["true"], **more)
        return RunPage.of(record, flow_run_id="f", environment=self.environment, say=self.said.append)

    @contextlib.contextmanager
    def attempt(
        self, page: RunPage, number: int = 1, *, left: dict[int, Path] | None = None, **secrets: str
    ) -> Iterator[None]:
        """An attempt, while the page's thread is at work."""
        ticking = Every(0.05, page.tick, name="page")
        ticking.start()
        try:
            with page.follow(
                number,
                log=self.log,
                telemetry=self.telemetry,
                secrets=secrets,
                say=self.said.append,
                left=left,
            ):
                yield
        finally:
            ticking.stop(timeout_s=30)

    def write(self, *points: dict[str, Any]) -> None:
        with self.telemetry.open("a") as file:
            file.writelines(json.dumps(point) + "\n" for point in points)

    def get(self, path: str) -> httpx.Response:
        bearer = {"authorization": f"Bearer {self.server.key}"}
        return httpx.get(f"{self.server.url}/api/v1/{path}", headers=bearer, trust_env=False)

    def run(self, slug: str) -> dict[str, Any]:
        reply = self.get(f"runs/{slug}")
        return reply.json()["data"] if reply.is_success else {}

    def until_told(self, page: RunPage, slug: str, state: str, reason: str) -> None:
        """Have a page say it: a server that was slow to answer is left alone for some seconds first."""

        def told() -> bool:
            page.tick()
            run = self.run(slug)
            return (run["state"], run["reason"]) == (state, reason)

        wait_until(told, within_s=30)

    def points(self, slug: str) -> list[dict[str, Any]]:
        lines = self.get(f"runs/{slug}/telemetry/points").text.splitlines()
        return [json.loads(line)["data"] for line in lines]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[MetricsServer]:
    with running_server(tmp_path_factory.mktemp("metrics") / "data") as running:
        yield running


@pytest.fixture
def site(server, tmp_path) -> Site:
    if server.process is None:
        server.start()
    return Site(server, tmp_path)


def ledger(code: int | None) -> Ledger:
    return Ledger(slug="a", attempts=(Entry(number=1, host="h", started_ms=0, start_step=0, code=code),))


def test_a_run_that_has_no_record_gets_one_and_says_how_it_goes(site):
    page = site.page("born", tree="0" * 64, checks=CHECKS)
    site.log.write_text("one\n")
    with site.attempt(page):
        site.write({"loss": 1.5})
        running = wait_until(lambda: (run := site.run("born")).get("state") == "running" and run, within_s=30)
        assert (running["attempt"], running["flow_run_id"], running["command"]) == (1, "f", ["true"])
        assert page.address == running["page"]
        wait_until(lambda: site.points("born"), within_s=30)  # while it runs
        wait_until(lambda: site.get("runs/born/log").text == "one\n", within_s=30)
    page.retrying("killed by SIGKILL; resuming")
    site.until_told(page, "born", "retrying", "killed by SIGKILL; resuming")
    page.stands("waiting for a disk")
    site.until_told(page, "born", "waiting", "waiting for a disk")
    site.store.put(RESULT, b'{"f1": 0.9}')
    page.ended(DONE, ledger(0), site.store)
    page.close(timeout_s=30)
    ended = site.run("born")
    assert (ended["state"], ended["exit_code"], ended["result"]) == ("done", 0, '{"f1": 0.9}')
    assert [verdict["passed"] for verdict in ended["verdicts"]] == [True]
    assert site.said == []


def test_the_experiment_is_opened_started_and_ended_for_a_command_that_does_not(site):
    page = site.page("announced", announced=True, folder=None)
    with site.attempt(page):
        pass
    page.ended(Decision(Action.FAIL, "exit code 3"), ledger(3), site.store)
    page.close(timeout_s=30)
    (found,) = site.get("experiments?slug=announced").json()["data"]["experiments"]
    assert (found["status"], found["slug"]) == ("error", "announced")
    assert site.run("announced")["exit_code"] == 3


@pytest.mark.parametrize(("code", "told"), [(-9, 137), (143, 143), (None, None), (0, 0)])
def test_an_exit_code_is_told_as_a_shell_would(code, told):
    assert run_page.exit_code(ledger(code).attempts[0]) == told


def test_while_the_server_is_away_nothing_is_lost_and_all_of_it_comes_later(site):
    page = site.page("outage")
    site.log.write_text("one\n")
    with site.attempt(page):
        site.write({"step": 1})
        wait_until(lambda: site.run("outage") and site.points("outage"), within_s=30)
        site.server.kill()
        site.write({"step": 2}, {"step": 3})
        site.log.write_text("one\ntwo\n")
    site.server.start()
    page.ended(DONE, ledger(0), site.store)
    page.close(timeout_s=30)
    assert site.points("outage") == [{"step": 1}, {"step": 2}, {"step": 3}]
    assert site.get("runs/outage/log").text == "one\ntwo\n"
    assert site.run("outage")["state"] == "done"
    assert site.said == []


def test_a_server_that_stays_away_is_waited_for_so_long_and_what_it_has_not_is_named(site, monkeypatch):
    monkeypatch.setattr(run_page, "BETWEEN_ATTEMPTS_S", 0.1)
    page = site.page("lost")
    site.server.kill()
    with site.attempt(page):
        site.write({"step": 1})
    page.ended(DONE, ledger(0), site.store)
    page.close(timeout_s=1)
    assert site.said[0] == "telemetry: not all of it has reached Metrics; the file lies at the run's location"
    assert site.said[1].startswith("Metrics was not told everything of this run: Metrics at ")


def test_what_an_attempt_left_is_its_own_when_another_flow_process_goes_on(site):
    first = site.page("left")
    with site.attempt(first):
        site.write({"step": 1})
        wait_until(lambda: site.run("left") and site.points("left"), within_s=30)
    site.write({"step": 2})  # its flow process is dead, and has not read this
    second = site.page("left")
    with site.attempt(second, 2):
        site.write({"step": 3})
    second.close(timeout_s=30)
    first.close(timeout_s=0)
    assert site.points("left") == [{"step": 1}, {"step": 2}, {"step": 3}]
    marks = site.run("left")["telemetry"]["attempts"]
    assert [(mark["attempt"], mark["after_seq"]) for mark in marks] == [(1, 0), (2, 2)]


def test_another_flow_process_goes_on_with_an_attempt_s_log_where_the_server_has_it(site):
    site.log.write_text("é\n" * 10)
    first = site.page("logged")
    with site.attempt(first):
        pass
    first.close(timeout_s=30)
    site.log.write_text("é\n" * 20)
    second = site.page("logged")
    with site.attempt(second):
        pass
    second.close(timeout_s=30)
    assert site.get("runs/logged/log").text == "é\n" * 20


def test_a_run_that_counts_its_attempts_anew_is_no_old_one(site):
    """Its location was emptied; the server refused everything it said as that of an older attempt."""
    first = site.page("anew")
    with site.attempt(first, 5):
        site.write({"step": 1})
    first.close(timeout_s=30)
    again = site.page("anew")
    with site.attempt(again, 1):
        site.write({"step": 2})
    again.close(timeout_s=30)
    assert site.run("anew")["attempt"] == 6
    assert site.points("anew") == [{"step": 1}, {"step": 2}]
    assert site.said == []


def test_what_is_dropped_is_said_in_the_run_s_log_the_first_time(site):
    page = site.page("dropped")
    with site.attempt(page), site.telemetry.open("a") as file:
        file.write("no json\nno json either\n")
    page.close(timeout_s=30)
    assert site.said == ["telemetry: dropped a line that is not JSON; write one JSON object per line"]
    assert site.run("dropped")["telemetry"]["dropped"] == {"not_json": 2}


@pytest.mark.parametrize(
    ("slug", "result", "size"),
    [("large", b" " * (MAX_RESULT_BYTES + 1), "262,145"), ("grown", b"\xff" * 100_000, "300,000")],
)
def test_a_result_that_is_too_large_is_not_kept_and_its_check_fails(site, slug, result, size):
    """One that grew as text was sent, and the last word refused with it: the page said running for ever."""
    page = site.page(slug, checks=CHECKS)
    with site.attempt(page):
        pass
    site.store.put(RESULT, result)
    page.ended(DONE, ledger(0), site.store)
    page.close(timeout_s=30)
    assert site.said == [
        f"result.json has {size} bytes as text and is not kept: write at most {MAX_RESULT_BYTES:,}"
    ]
    ended = site.run(slug)
    assert (ended["state"], ended["exit_code"], ended["result"]) == ("done", 0, None)
    assert [verdict["passed"] for verdict in ended["verdicts"]] == [False]


def test_a_run_that_is_cancelled_keeps_the_result_that_it_wrote_and_is_judged_by_it(site):
    """Its page said that it wrote none, and its checks failed for that."""
    page = site.page("cancelled", checks=CHECKS)
    with site.attempt(page):
        pass
    site.store.put(RESULT, b'{"f1": 0.9}')
    page.stopped(cancelled=True, store=site.store)
    page.close(timeout_s=30)
    ended = site.run("cancelled")
    assert (ended["state"], ended["result"]) == ("cancelled", '{"f1": 0.9}')
    assert [verdict["passed"] for verdict in ended["verdicts"]] == [True]


def test_a_run_is_cancelled_on_its_page_though_its_location_never_answers(site, monkeypatch):
    """Prefect kills who takes longer than 30 seconds, and nobody would say it then."""
    monkeypatch.setattr("flows.run_page.RESULT_S", 0.01)
    page, answer = site.page("unanswered"), threading.Event()

    class Silent(MemoryStore):
        def get(self, key):
            assert answer.wait(60)
            return super().get(key)

    with site.attempt(page):
        pass
    try:
        page.stopped(cancelled=True, store=Silent())
        page.close(timeout_s=30)
        assert site.run("unanswered")["state"] == "cancelled"
    finally:
        answer.set()


def test_a_run_without_a_key_of_metrics_has_no_page_and_says_nothing(site, tmp_path):
    record = Record(slug="none", kind="train")
    nowhere = {"XDG_CONFIG_HOME": str(tmp_path)}
    page = RunPage.of(record, flow_run_id="f", environment=nowhere, say=site.said.append)
    with site.attempt(page):
        site.write({"step": 1})
    page.ended(DONE, ledger(0), site.store)
    page.close(timeout_s=30)
    assert site.said == []


def test_a_key_that_is_refused_is_said_once_and_the_run_goes_on(site):
    record = Record(slug="refused", kind="train")
    environment = {**site.environment, "O41_METRICS_API_KEY": "wrong"}
    page = RunPage.of(record, flow_run_id="f", environment=environment, say=site.said.append)
    with site.attempt(page):
        wait_until(lambda: site.said, within_s=30)
    page.close(timeout_s=30)
    assert [line.partition(": ")[0] for line in site.said] == [
        "this run's log and telemetry are not kept in Metrics"
    ]


def test_a_run_that_is_scheduled_again_with_another_directory_says_so(site):
    files = [{"path": "exp.py", "size_bytes": 3, "blake3": "0" * 64}]
    for tree in ("0" * 64, "1" * 64):
        record = Record(slug="changed", kind="train", tree=tree, files=lambda: files)
        report_end(record, {"state": "done"}, site.environment)
        assert (site.run("changed")["tree"], site.run("changed")["state"]) == (tree, "done")
    assert site.get("runs/changed/files").json()["data"] == {"tree": "1" * 64, "files": files}


def test_rescue_says_what_a_flow_process_could_not(site):
    report_end(
        Record(slug="rescued", kind="train"), {"state": "cancelled", "reason": "why"}, site.environment
    )
    assert (site.run("rescued")["state"], site.run("rescued")["reason"]) == ("cancelled", "why")
    report_end(Record(slug="rescued", kind="train"), {"state": "done"}, {"XDG_CONFIG_HOME": "/nowhere"})


def test_who_found_a_run_dead_does_not_speak_over_an_attempt_that_has_begun_since(site):
    """The page of a run that ran again said for a moment that it is retried."""
    record = Record(slug="overtaken", kind="train")
    rescue = RunWriter(metrics_settings(site.environment), record)
    rescue.cursor()
    attempt = RunWriter(metrics_settings(site.environment), record)
    attempt.tell({"state": "running", "attempt": 1})
    with pytest.raises(Refused):
        rescue.tell_from_outside({"state": "retrying"})
    assert site.run("overtaken")["state"] == "running"
    for api in (rescue, attempt):
        api.close()


def test_slugline_cancel_says_so_on_the_page_of_a_run_that_no_process_looks_after(site, monkeypatch, capsys):
    """Its page said retrying for ever, and whoever followed its log waited for ever."""
    page = site.page("waits")
    with site.attempt(page):
        pass
    page.retrying("killed by SIGKILL")
    page.close(timeout_s=30)
    assert site.run("waits")["state"] == "retrying"
    server = OneRun("SCHEDULED", slug="waits", parameters={"experiment": "m", "slug": "waits"})
    monkeypatch.setattr("flows.scheduling.connect", lambda: contextlib.nullcontext(server))
    monkeypatch.setattr("flows.cli.use_stack", lambda _data: None)
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    cancel("waits")
    assert capsys.readouterr().out == "waits: cancelling: page of f\n"
    assert (site.run("waits")["state"], site.run("waits")["attempt"]) == ("cancelled", 1)


def test_an_attempt_that_was_replaced_before_the_server_heard_of_it_does_not_silence_the_newer(site):
    """Metrics was away when it began, its host was frozen later: it was taken for one counted anew."""
    record = Record(slug="late", kind="command")
    newer = RunWriter(metrics_settings(site.environment), record)
    newer.begin(2)
    newer.tell({"state": "running", "attempt": 2})
    older = RunWriter(metrics_settings(site.environment), record, is_replaced=lambda: True)
    older.begin(1)
    for say in (
        lambda: older.tell({"state": "running", "attempt": 1}),
        lambda: older.append_log(1, 0, "late"),
        lambda: older.append(1, Batch(after_seq=0, points=[{"step": 1}], cursor=Cursor(), dropped={})),
    ):
        with pytest.raises(Refused, match="another flow process"):
            say()
    newer.tell({"state": "done", "attempt": 2})
    assert (site.run("late")["state"], site.run("late")["attempt"]) == ("done", 2)
    for api in (newer, older):
        api.close()


def test_what_attempts_before_printed_when_their_flow_processes_were_gone_is_told_by_the_next(site):
    """Of the second, killed before it could tell anything, nothing was there; the first's end was lost."""
    page = site.page("died")
    logs = {number: site.folder / f"log-{number}" for number in (1, 2, 3)}
    site.log = logs[1]
    site.log.write_bytes(b"one \xff\n")
    with site.attempt(page):
        wait_until(lambda: site.get("runs/died/log").text == "one \ufffd\n", within_s=30)
    page.close(timeout_s=30)
    with site.log.open("a") as file:  # in its notice, when nobody looks any more
        file.write("saved\n")
    logs[2].write_text("two\n")
    site.log = logs[3]
    site.log.write_text("three\n")
    page = site.page("died")
    with site.attempt(page, 3, left={number: logs[number] for number in (1, 2)}):
        wait_until(lambda: site.get("runs/died/log?attempt=3").text == "three\n", within_s=30)
    page.close(timeout_s=30)
    told = [site.get(f"runs/died/log?attempt={number}").text for number in logs]
    assert told == ["one \ufffd\nsaved\n", "two\n", "three\n"]
    assert site.run("died")["attempt"] == 3


def test_another_try_of_an_attempt_keeps_its_number_whatever_is_left_of_the_one_before(site):
    """What was left, of a number below the newest, was taken for a run that counts anew."""
    before = site.log
    for _ in range(2):  # the second by another flow process
        page = site.page("tries")
        site.write({"loss": 1})
        before.write_text("of the second\n")
        site.log = site.folder / "log-3"
        site.log.write_text("of the third\n")
        with site.attempt(page, 3, left={2: before}):
            wait_until(lambda: site.get("runs/tries/log?attempt=2").text == "of the second\n", within_s=30)
        page.close(timeout_s=30)
    assert site.run("tries")["attempt"] == 3
    assert len(site.points("tries")) == 2


def test_who_asks_when_nothing_more_is_said_is_refused(site):
    """A tail that still read had its traceback logged every ten seconds, as if the server were away."""
    record = Record(slug="closed", kind="command", command=["true"])
    api = RunWriter(metrics_settings(site.environment), record)
    api.close()
    with pytest.raises(Refused):
        TelemetryDestination(api, 1).cursor()
