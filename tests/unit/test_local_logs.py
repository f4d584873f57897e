"""infra.local.logs: the last lines, then every further one, across a rotation."""

import pytest

from infra.local import cli
from infra.local.errors import StackError
from infra.local.logs import follow, last_lines


def test_the_newest_lines_of_a_log(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("1\n2\n3\n")
    assert last_lines(log, 2) == ["2", "3"]


def test_a_log_that_is_not_there_yet_has_no_lines(tmp_path):
    assert last_lines(tmp_path / "none.log", 5) == []


def test_the_logs_of_no_stack_are_a_mistake(tmp_path):
    """Of a directory that is misspelt nothing was printed, and -f waited for ever."""
    with pytest.raises(StackError, match=r"there is no stack in .*: start one with slugline up"):
        cli.logs(None, data=tmp_path / "misspelt", follow=True)


def test_following_yields_whole_lines_from_now_on_and_survives_a_rotation(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("before\n")

    def write(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    def rotate() -> None:
        log.rename(tmp_path / "a.log.1")
        log.write_text("new file\n")

    steps = iter([lambda: write("one\ntw"), lambda: write("o\n"), rotate])

    def wait() -> None:
        next(steps)()

    lines = follow([("a", log)], wait=wait)
    assert [next(lines) for _ in range(3)] == [("a", "one"), ("a", "two"), ("a", "new file")]
    lines.close()


def test_following_waits_for_a_log_to_appear(tmp_path):
    log = tmp_path / "a.log"
    lines = follow([("a", log)], wait=lambda: log.write_text("first\n") and None)
    assert next(lines) == ("a", "first")
    lines.close()
