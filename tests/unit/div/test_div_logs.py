"""Following a log: attempts in order, every byte once, and how it ends."""

from contextlib import contextmanager

import pytest

from flows.div.api import Log
from flows.div.logs import exit_code, follow
from infra.client.errors import Unavailable


class Server:
    """A server's answers, one a question; an answer is what is there then: logs by attempt, state, reason."""

    def __init__(self, *answers) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[int, int, float]] = []
        self._now = answers[0]

    @contextmanager
    def log(self, _name, *, attempt, after, wait_s):
        self.asked.append((attempt, after, wait_s))
        self._now = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(self._now, Exception):
            raise self._now
        logs, state = self._now[0], self._now[1]
        text = logs.get(attempt, b"")
        later = [number for number in sorted(logs) if number > attempt]
        final = state in ("done", "failed", "cancelled")
        yield Log(iter([text[after:]]), attempt, len(text), later[0] if later else None, final)

    def run(self, name):
        state, reason, code = (*self._now[1:], None, None)[:3]
        return {"name": name, "state": state, "reason": reason, "exit_code": code}


def test_attempts_are_printed_in_order_and_every_byte_once(capfd):
    server = Server(
        ({}, "scheduled"),
        ({1: b"a\n"}, "running"),
        ({1: b"a\nb"}, "running"),
        ({1: b"a\nb"}, "retrying", "killed by signal 9"),
        ({1: b"a\nb\n", 2: b"c\n"}, "running"),
        ({1: b"a\nb\n", 2: b"c\nd\n"}, "running"),
        ({1: b"a\nb\n", 2: b"c\nd\n"}, "done", "done in attempt 2", 0),
    )
    assert follow(server, "r", attempt=1) == 0  # type: ignore[arg-type]
    out, err = capfd.readouterr()
    assert out == "a\nb\nc\nd\n"
    assert err.splitlines() == [
        "r: scheduled",
        "r: running",
        "r: retrying: killed by signal 9",
        "r: running",
        "r: done: done in attempt 2",
        "-- attempt 2 --",
    ]


def test_the_last_lines_of_one_attempt_may_come_after_the_first_of_the_next(capfd):
    server = Server(
        ({1: b"a", 2: b"c\n"}, "running"),
        ({1: b"a", 2: b"c\n"}, "running"),
        ({1: b"ab\n", 2: b"c\n"}, "running"),
        ({1: b"ab\n", 2: b"c\n"}, "failed", "no", 3),
    )
    assert follow(server, "r", attempt=1) == 3  # type: ignore[arg-type]
    assert capfd.readouterr().out == "ab\nc\n"


def test_a_server_that_is_away_is_asked_again_from_where_it_was(capfd, monkeypatch):
    monkeypatch.setattr("flows.div.following.time.sleep", lambda _s: None)
    monkeypatch.setattr("flows.div.following.Patience.wait", lambda *_: None)
    server = Server(({1: b"a"}, "running"), Unavailable("away"), ({1: b"ab"}, "done", None, 0))
    assert follow(server, "r", attempt=1) == 0  # type: ignore[arg-type]
    assert capfd.readouterr().out == "ab"
    assert [after for _, after, _ in server.asked][:3] == [0, 1, 1]


def test_while_it_is_quiet_somebody_else_is_asked(capfd):
    quiet = []
    server = Server(({}, "scheduled"), ({}, "scheduled"), ({}, "failed", "crashed"))
    assert follow(server, "r", attempt=1, when_quiet=lambda: quiet.append(1)) == 1  # type: ignore[arg-type]
    assert len(quiet) == 2


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("done", 0, 0),
        ("done", None, 0),
        ("failed", 7, 7),
        ("failed", None, 1),
        ("failed", 0, 1),
        ("cancelled", 0, 130),
    ],
)
def test_following_exits_as_the_command_did(state, code, expected):
    assert exit_code({"state": state, "exit_code": code}) == expected
