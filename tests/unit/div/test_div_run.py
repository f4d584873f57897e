"""What is said of a mistake in `div run` before any server is asked."""

import contextlib
import os
from types import SimpleNamespace

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.div.run import EndSeen, _print
from runtime.errors import Unavailable
from tests.support.metrics_command import Command


@pytest.fixture
def div(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    # Servers that nobody runs: whoever asks one waits for nothing and fails.
    nowhere = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "O41_METRICS_HOST": "http://127.0.0.1:9"}
    return Command(monkeypatch, capfd, tmp_path, "div", O41_METRICS_API_KEY="key", **nowhere)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing argument 'COMMAND"),
        (("--gpus", "-1", "--", "true"), "'--gpus': Input should be greater than or equal to 0"),
        (("--gpus", "two", "--", "true"), "'--gpus': Input should be a valid integer"),
        (("--retries", "-1", "--", "true"), "'--retries': Input should be greater than or equal to 0"),
        (("--gpus", "9" * 20, "--", "true"), "gpus must be a whole number of at most 9,007,199,254,740,991"),
        (("--retries", "9" * 20, "--", "true"), "retries must be a whole number of at most 9,007,199,"),
        (("--env", "LR", "--", "true"), "--env takes K=V, got 'LR'."),
        (("--env", "DIVERGENT_RUN=x", "--", "true"), "DIVERGENT_RUN is set by the run itself"),
        (("--env", "=x", "--", "true"), "K is of letters, digits and _, got ''"),
        (("--secret", "token", "--", "true"), "of capital letters, digits and _, got 'token'"),
        (("--slug", "", "--", "true"), "slug: "),
        (("--cron", "0 3 * * *", "--", "true"), "--cron needs --slug: its runs are called <slug>-<time>."),
        (("-f", "--cron", "0 3 * * *", "--slug", "a", "--", "true"), "--follow follows one run"),
        (("--telemetry", "none.toml", "--", "true"), "there is no file none.toml"),
        (("--telemetry", ".", "--", "true"), ". cannot be read (Is a directory)"),
        (
            ("--telemetry", "latin.toml", "--", "true"),
            "telemetry is not UTF-8 at line 2; write TOML in UTF-8",
        ),
        (
            ("--telemetry", "large.toml", "--", "true"),
            "telemetry has 65,537 bytes, which is more than 65,536",
        ),
        (("--no-such-flag", "--", "true"), "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(div, tmp_path, arguments, said):
    (tmp_path / "latin.toml").write_bytes(b"\n\xe9")
    (tmp_path / "large.toml").write_bytes(b"#" * 65_537)
    refused = div("run", *arguments)
    assert refused.code == 2
    assert said in refused.line


@pytest.mark.parametrize("name", ["telemetry.toml", "checks.toml"])
@pytest.mark.parametrize("is_link", [False, True], ids=["folder", "link"])
def test_a_file_that_is_there_and_cannot_be_read_refuses_the_run(div, tmp_path, name, is_link):
    """A link that leads nowhere was taken for no file: the run went without its checks."""
    file = tmp_path / name
    if is_link:
        file.symlink_to("nowhere")
    else:
        file.mkdir()
    refused = div("run", "--", "true")
    assert refused.code == 2
    assert f"{file} cannot be read (" in refused.line


def test_a_directory_that_is_gone_is_one_line_and_exit_code_75(div, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    refused = div("run", "--", "true")
    assert (refused.code, refused.line) == (
        75,
        "div: the working directory is gone: change to one that exists",
    )


def test_flags_of_the_command_are_the_commands(div):
    """`--gpus` after the first word is not ours: a bad one goes as far as the server, which is not there."""
    assert div("run", "python", "train.py", "--gpus", "two").code == 75


def test_where_a_run_is_stands_on_standard_output_unless_its_log_does(capsys):
    fields = {"run": "run-7", "page": "http://m/7", "prefect": "http://p/7"}
    told = "run      run-7\npage     http://m/7\nprefect  http://p/7\n"
    _print(fields, following=False)
    assert capsys.readouterr() == (told, "")
    _print(fields, following=True)
    assert capsys.readouterr() == ("", told)


class Page:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def tell(self, name, said):
        self.told.append((name, said))


@pytest.mark.parametrize(
    ("state", "told"),
    [("Failed", "failed"), ("Crashed", "failed"), ("Cancelled", "cancelled"), ("Completed", "done")],
)
def test_a_run_that_could_tell_nobody_of_its_end_is_told_of(monkeypatch, state, told):
    """Only when it has been over for a while: its own last words may be on their way."""
    views = [SimpleNamespace(live=True, state="Running", message=None)]
    views += [SimpleNamespace(live=False, state=state, message="it cannot start")] * 3
    monkeypatch.setattr("flows.scheduling.find_run", lambda _slug: views.pop(0))
    page = Page()
    ended = EndSeen(page, "run-1")  # type: ignore[arg-type]
    for _ in range(3):
        ended()
        assert not page.told
    ended()
    reason = None if told == "done" else "it cannot start"
    assert page.told == [("run-1", {"state": told, "reason": reason})]


def test_a_prefect_that_is_away_says_nothing_about_a_run(monkeypatch):
    def away(_slug):
        raise Unavailable("away")

    monkeypatch.setattr("flows.scheduling.find_run", away)
    page = Page()
    ended = EndSeen(page, "run-1")  # type: ignore[arg-type]
    for _ in range(5):
        ended()
    assert not page.told


@pytest.mark.parametrize(
    ("value", "said"),
    [("abc\n", "TOKEN"), ("\n", "TOKEN"), ("1234567\n", "TOKEN")],
    ids=["short", "empty", "digits"],
)
def test_a_value_that_would_mask_everything_is_no_secret(div, value, said):
    refused = div("secret", "set", "TOKEN", stdin=value)
    assert refused.code == 2
    assert said in refused.line
    assert value.strip() == "" or value.strip() not in refused.err


def test_a_value_that_is_typed_is_asked_for_and_not_shown(div):
    ours, its = os.openpty()
    with div.process(
        "secret", "set", "TOKEN", stdin=its, stdout=its, stderr=its, start_new_session=True
    ) as process:
        os.close(its)
        seen = b""
        while not seen.endswith(b"Value of TOKEN: "):
            seen += os.read(ours, 1000)
        os.write(ours, b"xyz\n")
        with contextlib.suppress(OSError):  # as a terminal that is gone ends
            while True:
                seen += os.read(ours, 1000)
        os.close(ours)
    assert process.returncode == 2
    assert b"secret TOKEN has 3 characters" in seen
    assert b"xyz" not in seen


def test_a_secret_s_value_is_never_an_argument(div):
    refused = div("secret", "set", "TOKEN", "a-long-value")
    assert refused.code == 2
    assert "a-long-value" in refused.line  # named as the argument that is too many: it is in `ps` by now


def test_without_a_server_there_is_no_secret_set(div):
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):  # read at import, maybe before
        refused = div("secret", "set", "TOKEN", stdin="long-enough-value")
    assert refused.code == 75
    assert "the Prefect server at http://127.0.0.1:9/api does not answer" in refused.line
