"""flows.div.following: how long a server may be away, and a reader that is gone."""

import os
import sys

import pytest

from flows.div.following import Patience, check_that_somebody_reads
from infra.client.errors import Unavailable


def test_patience_waits_longer_and_longer_and_then_gives_up_with_what_was_wrong(capsys):
    pauses: list[float] = []
    patience = Patience("telemetry", patience_s=60, sleep=pauses.append)
    for attempt in range(11):
        patience.wait(Unavailable(f"attempt {attempt}"))
    with pytest.raises(Unavailable, match="attempt 11"):
        patience.wait(Unavailable("attempt 11"))
    assert pauses == [0.25, 0.5, 1, 2, 4, 8, 10, 10, 10, 10, 10]
    assert capsys.readouterr() == ("", "telemetry: attempt 0; trying again\n")


def test_patience_is_whole_again_once_the_server_answered(capsys):
    pauses: list[float] = []
    patience = Patience("log", sleep=pauses.append)
    for _ in range(3):
        patience.wait(Unavailable("away"))
        patience.wait(Unavailable("away"))
        patience.reached()
    assert pauses == [0.25, 0.5] * 3
    assert capsys.readouterr().err == "log: away; trying again\n" * 3


def test_a_pipe_that_nobody_reads_is_noticed_before_anything_is_written(monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        check_that_somebody_reads()
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            check_that_somebody_reads()


def test_a_file_is_always_read(monkeypatch, tmp_path):
    with (tmp_path / "out").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        check_that_somebody_reads()
