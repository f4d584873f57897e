"""What a command prints, on its way into the log."""

from __future__ import annotations

import stat

import pytest

from flows.output import Output
from runtime.telemetry.masking import Masker

SECRETS = {"TOKEN": "hunter2-but-longer"}


def masker() -> Masker:
    return Masker(SECRETS)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "attempt-0001.log"


def output(log) -> Output:
    return Output(log.parent, log, masker=masker())


def test_what_is_printed_is_masked_also_where_two_reads_split_a_secret(log):
    made = output(log)
    with made.path.open("ab", buffering=0) as command:
        command.write(b"token hunter2-")
        made.pump()
        command.write(b"but-longer\n")
    made.pump()
    assert log.read_bytes() == b"token ***\n"


def test_nobody_else_may_read_what_is_not_masked_and_nothing_of_it_stays(log):
    made = output(log)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    made.path.write_bytes(b"the end has no line feed: hunter2-but-longer")
    made.finish()
    made.finish()
    made.pump()
    assert log.read_bytes() == b"the end has no line feed: ***"
    assert list(log.parent.iterdir()) == [log]


def test_the_log_is_utf_8_whatever_is_printed_also_where_reads_split_a_letter(log):
    made = output(log)
    with made.path.open("ab", buffering=0) as command:
        command.write("é".encode()[:1])
        made.pump()
        command.write("é".encode()[1:] + b"\xff\n")
    made.finish()
    assert log.read_text() == "é\ufffd\n"


def test_another_try_of_an_attempt_goes_on_where_its_log_ends(log):
    log.write_bytes(b"the first try\n")
    made = output(log)
    made.path.write_bytes(b"the second\n")
    made.finish()
    assert log.read_bytes() == b"the first try\nthe second\n"


@pytest.mark.parametrize("copied", [b"", b"hunter2", b"one hunter2-but-longer"], ids=["none", "some", "more"])
def test_what_a_flow_process_that_died_did_not_copy_the_next_one_does(log, copied):
    """It may have died before, in the middle of, or after any write of its own."""
    log.write_bytes(b"before\n")
    made = output(log)
    made.path.write_bytes(copied)
    made.pump()
    with made.path.open("ab") as command:
        command.write(b"hunter2-but-longer and last words\n")
    whole = made.path.read_bytes()
    Output.finish_left(log.parent, masker)
    assert log.read_bytes() == b"before\n" + masker().mask(whole)
    assert list(log.parent.iterdir()) == [log]


def test_what_else_lies_in_the_folder_is_left_alone(log):
    other = log.parent / "attempt-0001.output-old"
    other.touch()
    Output.finish_left(log.parent, masker)
    assert other.exists()


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b"said\n"), (b"x\n", b"x\nsaid\n"), (b"half a li", b"half a li\nsaid\n")]
)
def test_a_line_of_ours_is_a_line_of_its_own(log, before, after):
    made = output(log)
    made.path.write_bytes(before)
    made.say("said")
    made.finish()
    assert log.read_bytes() == after


def test_a_line_that_is_said_when_all_is_copied_is_in_the_log(log):
    """Telemetry that is delivered after its attempt may say for the first time that something is dropped."""
    made = output(log)
    made.path.write_bytes(b"half a li")
    made.finish()
    made.say("said")
    assert log.read_bytes() == b"half a li\nsaid\n"
    assert list(log.parent.iterdir()) == [log]


@pytest.mark.parametrize("half", [6, 1])
def test_a_line_of_ours_cuts_no_secret_in_two(log, half):
    """Said between two writes of a secret it stood in its middle, and neither half was masked."""
    token = SECRETS["TOKEN"].encode()
    made = output(log)
    with made.path.open("ab", buffering=0) as command:
        command.write(b"token " + token[:half])
        made.say("said")
        made.pump()
        command.write(token[half:] + b"\n")
        made.pump()
        command.write(b"more " + token[:half])
        made.say("said at the end")
    made.finish()
    assert log.read_bytes() == b"token ***\nsaid\nmore " + token[:half] + b"\nsaid at the end\n"
