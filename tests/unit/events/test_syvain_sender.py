"""The sender, its spool and the segments against a perfect model, under random failures and deaths."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from runtime.events.kinds import Metric, Open
from runtime.events.syvain import sender as sender_module
from runtime.events.syvain.client import Garbled, Grant, Refusal, Trouble
from runtime.events.syvain.sender import Pace, Sender
from runtime.events.syvain.spool import Segments, Spool
from runtime.events.syvain.wire import EventError, spool_line
from runtime.events.targets import Segment
from tests.unit.events.test_syvain_spool import tiny_files

OPEN = Open(1, "my-run", "d", {})
RETRY = EventError("busy", "", 503, retryable=True)
WHOLE_FAILURES = ["lost", "answer lost", "garbled", "too large", "token refused"]
PARTIAL_FAILURES = ["half answered", "half retried"]
GRANT_FAILURES = ["lost", "answer lost", "garbled", "gone"]


class ModelServer:
    """Stores each message id once, in order of arrival, and fails as the test tells it."""

    def __init__(self):
        self.stored = {}
        self.plan = []
        self.tokens = 0
        self.valid = set()
        self.may_refuse = True

    def next_failure(self, possible):
        failure = self.plan.pop(0) if self.plan else None
        return failure if failure in possible else None

    def open(self, event):
        assert event is OPEN
        return self._grant(self.next_failure(GRANT_FAILURES[:3]))

    def refresh(self, grant):
        assert isinstance(grant, Grant)
        failure = self.next_failure(GRANT_FAILURES)
        if failure == "gone":
            raise Refusal(404, "gone", "")
        return self._grant(failure)

    def _grant(self, failure):
        if failure == "lost":
            raise Trouble("lost")
        self.tokens += 1
        self.valid.add(str(self.tokens))
        if failure == "answer lost":
            raise Trouble("answer lost")
        if failure == "garbled":
            raise Garbled("garbled")
        return Grant("x", str(self.tokens), 10**15)

    def write(self, grant, message_ids, messages):
        assert 1 <= len(message_ids) <= 5
        failure = self.next_failure(WHOLE_FAILURES + PARTIAL_FAILURES)
        if failure == "token refused" and self.may_refuse:
            self.valid.clear()
            self.may_refuse = False  # a batch that is refused twice is dropped, as the protocol says
        if grant.token not in self.valid:
            raise Refusal(401, "HTTP 401", "")
        if failure == "lost":
            raise Trouble("lost")
        if failure == "too large" and len(messages) > 1:
            raise Refusal(413, "HTTP 413", "")
        half = len(messages) // 2
        taken = list(zip(message_ids, messages, strict=True))
        for message_id, message in taken[:half] if failure == "half retried" else taken:
            assert self.stored.setdefault(message_id, message) == message, "an id never names two events"
        if failure == "answer lost":
            raise Trouble("answer lost")
        if failure == "garbled":
            raise Garbled("garbled")
        answers = dict.fromkeys(message_ids[:half] if failure in PARTIAL_FAILURES else message_ids)
        if failure == "half retried":
            answers |= dict.fromkeys(message_ids[half:], RETRY)
        self.may_refuse |= not message_ids[0].endswith(".0")
        return answers

    def folder_tree(self):
        raise AssertionError("no folder was asked for")

    def place(self, experiment_id, folder_id):
        raise AssertionError(f"no folder was asked for, {experiment_id} was to be in {folder_id}")

    def revoke(self, grant, *, timeout_s):
        assert timeout_s <= 2
        self.valid.discard(grant.token)

    def page(self, experiment_id):
        return f"http://m/dashboard/experiments/{experiment_id}"

    def close(self):
        pass


@dataclass
class Checkpoint:
    """What a published checkpoint holds: the events said before it, and the names of its segments."""

    said: list[str]
    names: tuple[str, ...] = ()


@dataclass
class Attempt:
    session: str
    server: ModelServer
    inherited: list[Segment]
    said: list[str]
    now: float = 0.0
    spool: Spool = field(default_factory=Spool)
    unstored: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self):
        self.segments = Segments(self.spool, self.session)
        self.segments.inherit(self.inherited)
        self.sender = Sender(
            self.server,
            self.spool,
            session=self.session,
            pace=Pace(),
            clock=lambda: self.now,
            clock_ms=lambda: 1,
        )
        self.sender.open_with(OPEN)

    def say(self, count):
        lines: list[bytes] = []
        for _ in range(count):
            number = self.segments.sequence(self.spool.end + len(lines))
            event = Metric(number, number, "loss", 0.5, {"k": "v" * (number % 5)})
            lines.append(spool_line(self.session, number, event, event.encode()))
            self.said.append(f"{self.session}.{number}")
        self.spool.append(lines)

    def step(self):
        pause_s = self.sender.step()
        assert pause_s is not None
        self.now += pause_s
        return pause_s


class Runs(RuleBasedStateMachine):
    """Attempts of one run that say things, send, save and die at any moment."""

    failures: list[str] = [*WHOLE_FAILURES, "gone"]  # noqa: RUF012 (a constant of the machine)

    @initialize()
    def begin(self):
        self.server = ModelServer()
        self.store: dict[str, bytes] = {}
        self.checkpoint = Checkpoint([])
        self.num_attempts = 0
        self.resume()

    def resume(self):
        self.num_attempts += 1
        inherited = [Segment(name, self.store[name]) for name in self.checkpoint.names]
        session = f"{self.num_attempts:032x}"
        self.attempt = Attempt(session, self.server, inherited, list(self.checkpoint.said))

    @rule(count=st.integers(0, 9))
    def say(self, count):
        self.attempt.say(count)

    @rule(data=st.data(), count=st.integers(1, 6))
    def send(self, data, count):
        self.server.plan = data.draw(st.lists(st.sampled_from([*self.failures, None]), max_size=count))
        for _ in range(count):
            self.attempt.step()

    @rule(extra=st.integers(0, 4), sent=st.integers(0, 3), published=st.booleans())
    def save(self, extra, sent, published):
        """Mark, go on, then cut, store and publish: the last may fail."""
        attempt = self.attempt
        said, position = list(attempt.said), attempt.spool.end
        attempt.say(extra)
        for _ in range(sent):
            attempt.step()
        backlog = attempt.segments.cut(position)
        if backlog.new is not None:
            attempt.unstored[backlog.new.name] = backlog.new.data
        assert not set(backlog.names) - set(self.store) - set(attempt.unstored), "every named segment exists"
        if published:
            self.store |= attempt.unstored
            attempt.unstored.clear()
            self.checkpoint = Checkpoint(said, backlog.names)
            self.check_segments()

    def check_segments(self):
        ids = [
            f"{event['session']}.{event['sequence']}"
            for name in self.checkpoint.names
            for event in map(json.loads, self.store[name].splitlines())
        ]
        assert len(ids) == len(set(ids)), "each event is stored once"
        assert set(ids) <= set(self.checkpoint.said), "a segment ends at its checkpoint"
        assert set(self.checkpoint.said) <= set(ids) | set(self.server.stored), "nothing before it is lost"

    @precondition(lambda self: self.num_attempts < 6)
    @rule()
    def die(self):
        self.resume()

    @invariant()
    def sizes_agree(self):
        if hasattr(self, "attempt"):
            assert 0 <= self.attempt.sender.num_unsent <= self.attempt.spool.end

    def teardown(self):
        if not hasattr(self, "attempt"):
            return
        self.server.plan = []
        for _ in range(500):
            if self.attempt.step() > 10 and self.attempt.sender.num_unsent == 0:
                break
        assert self.attempt.sender.num_unsent == 0
        assert not self.attempt.sender.dropped
        metrics = [message_id for message_id in self.server.stored if not message_id.endswith(".0")]
        assert set(self.checkpoint.said) <= set(metrics)
        assert set(self.attempt.said) <= set(metrics)
        self.check_order(metrics)

    def check_order(self, metrics):
        in_order = sorted(metrics, key=lambda message_id: (message_id[:32], int(message_id[33:])))
        assert metrics == in_order, "events arrive in the order in which they happened"


class RunsWithPartialAnswers(Runs):
    """Metrics also takes half of a request: then the rest of a batch may come after its other half."""

    failures = [*Runs.failures, *PARTIAL_FAILURES]  # noqa: RUF012 (a constant of the machine)

    def check_order(self, metrics):
        for place, message_id in enumerate(metrics):
            earlier = [other for other in metrics[place + 1 :] if other[:32] < message_id[:32]]
            assert not earlier, "no event of an earlier attempt comes after one of a later attempt"


@pytest.mark.parametrize("machine", [Runs, RunsWithPartialAnswers])
def test_every_event_up_to_a_checkpoint_is_stored_exactly_once(machine, monkeypatch):
    monkeypatch.setattr(sender_module, "MAX_BATCH_EVENTS", 5)
    monkeypatch.setattr(sender_module, "_MOST_BYTES", 900)
    monkeypatch.setattr(sender_module.logger, "disabled", True)
    with tiny_files(1_000):
        run_state_machine_as_test(
            machine,
            settings=settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True),
        )


class RefusingServer(ModelServer):
    num_asked = 0

    def write(self, *_):
        self.num_asked += 1
        raise Refusal(400, "HTTP 400", "")


def test_a_refused_heartbeat_waits_for_the_next_silence_and_is_no_lost_event():
    """It was sent again at once, as fast as the server refused it."""
    server = RefusingServer()
    attempt = Attempt("0" * 32, server, [], [])
    while attempt.now < 100:
        attempt.step()
        assert server.num_asked <= 1 + attempt.now / 25
    assert not attempt.sender.dropped
    attempt.say(3)
    while attempt.sender.num_unsent:
        attempt.step()
    assert attempt.sender.dropped == {"refused (HTTP 400)": 3}


def test_the_experiments_page_is_said_once_and_as_soon_as_metrics_has_opened_it(caplog):
    caplog.set_level("INFO")
    attempt = Attempt("0" * 32, ModelServer(), [], [])
    attempt.step()
    said = f"the experiment's page: {attempt.sender.url}"
    assert [record.message for record in caplog.records] == [said]
    attempt.sender._grant = None  # a token that is gone: the same experiment is opened again
    attempt.step()
    assert caplog.text.count("the experiment's page") == 1
