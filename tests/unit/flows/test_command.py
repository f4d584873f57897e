"""One attempt of a shipped command on this host."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from flows.command import CommandTrainer, checkpoints_of, is_sexpgpu_run
from flows.endings import Ended, Ending
from flows.hidden import OF_THE_WORKER, Hidden
from flows.pulse import Upkeep
from flows.records import record_of
from flows.report import Report
from flows.ship_parameters import ShipParameters
from flows.shipping import ship
from runtime.checkpoints.local import LocalStore
from runtime.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = {"TOKEN": "hunter2-but-longer", "OTHER": "another-one"}


class Stand:
    """A directory that was shipped, and commands that are run in it."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder, self.location = home, home / "work", home / "location"
        self.folder.mkdir()
        (home / "directory").mkdir()
        (home / "directory/here.txt").write_text("the directory")
        self.trees = LocalStore(home / "trees")
        self.secrets: dict[str, str] | None = SECRETS
        self.report = Report(
            slug="a", flow_run_id="f", events=self.folder / "events.jsonl", log=logging.getLogger("run")
        )

    def trainer(
        self, *command: str, environment: dict[str, str] | None = None, **more: Any
    ) -> CommandTrainer:
        """What runs attempts of a command."""
        tree, _ = ship(self.home / "directory", self.trees)
        given = {"slug": "a", "location": str(self.location), "notice_s": 5.0, "tree": tree.digest, **more}
        store = LocalStore(self.location)
        kept = {name: value for name, value in os.environ.items() if "METRICS" not in name}
        kept |= {"XDG_CONFIG_HOME": str(self.home / "no logins"), "SLUGLINE_GPUS": "0"}
        environment = kept | (environment or {})
        return CommandTrainer(
            parameters=ShipParameters(command=command, **given),
            store=store,
            trees=self.trees,
            folder=self.folder,
            environment=environment,
            hidden=Hidden(self.read_secrets, environment),
            report=self.report,
            upkeep=Upkeep(store, "t", progress=self.report.steps),
        )

    def read_secrets(self) -> dict[str, str]:
        if self.secrets is None:
            raise Unavailable("Prefect is away")
        return self.secrets

    def run(
        self, *command: str, number: int = 1, environment: dict[str, str] | None = None, **more: Any
    ) -> Ended:
        return self.trainer(*command, environment=environment, **more)(number, lambda _process: None)

    def env(self, **more: Any) -> dict[str, str]:
        """The environment that a command sees."""
        assert self.run("bash", "-c", 'env -0 > "$SLUGLINE_CHECKPOINTS/env"', **more).ending is Ending.DONE
        seen = (self.location / "checkpoints/env").read_text().split("\0")
        return dict(line.split("=", 1) for line in seen if line)

    def log(self, number: int = 1) -> str:
        return (self.folder / f"attempt-{number:04d}.log").read_text()


@pytest.fixture
def stand(tmp_path) -> Stand:
    return Stand(tmp_path)


def test_a_command_runs_in_what_was_shipped_and_both_its_outputs_are_its_log_in_order(stand):
    ended = stand.run("bash", "-c", "cat here.txt; echo; echo out; echo err >&2; echo out again")
    assert ended == Ended(ending=Ending.DONE, code=0)
    assert stand.log() == "the directory\nout\nerr\nout again\n"


def test_a_command_finds_what_it_needs_in_its_environment(stand):
    host = {"O41_METRICS_HOST": "http://127.0.0.1:9", "O41_METRICS_API_KEY": "key-of-metrics"}
    env = stand.env(env={"EPOCHS": "3"}, secrets=("TOKEN",), number=4, environment=host)
    told = {
        "DIVERGENT_TELEMETRY_PATH": str(stand.folder / "telemetry.jsonl"),
        "DIVERGENT_RESULT_PATH": str(stand.folder / "result.json"),
        "DIVERGENT_RUN": "a",
        "DIVERGENT_ATTEMPT": "4",
        "SLUGLINE_SLUG": "a",
        "SLUGLINE_CHECKPOINTS": str(stand.location / "checkpoints"),
        "CUDA_VISIBLE_DEVICES": "",
        "EPOCHS": "3",
        "TOKEN": "hunter2-but-longer",
        "PYTHONUNBUFFERED": "1",
        **host,
    }
    assert {name: env.get(name) for name in told} == told
    assert "OTHER" not in env


def test_what_a_command_is_given_wins_over_what_its_worker_has(stand):
    stand.secrets = {"PATH": "/usr/bin:/bin"}
    given = {"PYTHONUNBUFFERED": "", "LANG": "C"}
    env = stand.env(env=given, secrets=("PATH",), environment={"LANG": "de_DE"})
    assert {name: env[name] for name in (*given, "PATH")} == {**given, **stand.secrets}


@pytest.mark.parametrize(("asked", "sees"), [(None, "0"), (2, "0,1"), (0, "")])
def test_a_command_sees_the_gpus_that_were_leased_for_it_and_holds_their_locks(stand, asked, sees):
    host = {"SLUGLINE_GPUS": "2", "SLUGLINE_GPU_LOCKS": str(stand.home / "locks")}
    told = 'echo "$CUDA_VISIBLE_DEVICES"; readlink /proc/$$/fd/* | grep -c "$SLUGLINE_GPU_LOCKS"; exit 0'
    stand.run("bash", "-c", told, gpus=asked, environment=host)
    assert stand.log() == f"{sees}\n{len(sees.split(',')) if sees else 0}\n"


def test_the_python_of_a_command_is_ours(stand):
    assert stand.run("python", "-c", "import runtime.telemetry").ending is Ending.DONE, stand.log()


def test_files_of_an_earlier_attempt_are_still_there_on_the_same_host(stand):
    stand.run("bash", "-c", "echo kept > here-too.txt; kill -9 $$")
    assert stand.run("cat", "here-too.txt", number=2).ending is Ending.DONE
    assert stand.log(2) == "kept\n"


def test_secrets_are_masked_in_the_log_also_those_that_the_command_was_not_given(stand):
    stand.run(
        "bash",
        "-c",
        "echo $TOKEN another-one $AWS_SECRET_ACCESS_KEY $O41_METRICS_API_KEY $PREFECT_API_KEY",
        secrets=("TOKEN",),
        environment={
            "AWS_SECRET_ACCESS_KEY": "of-the-worker",
            "O41_METRICS_API_KEY": "key-of-metrics",
            "PREFECT_API_KEY": "key-of-prefect",
        },
    )
    assert stand.log() == "*** *** *** *** ***\n"


def test_the_keys_of_the_worker_are_masked_also_beside_secrets_of_their_names(stand):
    """The organisation's own AWS_SECRET_ACCESS_KEY took the place of the worker's among what is masked."""
    stand.secrets = dict.fromkeys(OF_THE_WORKER, "of-the-organisation")
    environment = {name: f"of-the-worker-{name.lower()}" for name in OF_THE_WORKER}
    stand.run("env", environment=environment)
    assert "of-the-worker" not in stand.log()
    assert all(f"{name}=***" in stand.log().splitlines() for name in OF_THE_WORKER)


def test_every_attempt_has_the_secrets_of_its_start_and_what_they_were_stays_masked(stand):
    trainer = stand.trainer(
        "bash", "-c", "echo $TOKEN; echo hunter2-but-longer a-newer-one", secrets=("TOKEN",)
    )
    started = lambda _process: None  # noqa: E731 - one expression
    trainer(1, started)
    stand.secrets = {"TOKEN": "a-newer-one"}
    trainer(2, started)
    stand.secrets = None
    assert trainer(3, started).ending is Ending.DONE  # nobody can say: those that were
    assert [stand.log(number).splitlines()[0] for number in (1, 2, 3)] == ["***"] * 3
    assert [stand.log(number).splitlines()[1] for number in (1, 2, 3)] == [
        "*** a-newer-one",
        *["*** ***"] * 2,
    ]


def test_without_the_secrets_nothing_is_begun_and_nothing_is_kept_unmasked(stand):
    stand.secrets = None
    trainer = stand.trainer("true")
    assert trainer(1, lambda _process: None).ending is Ending.UNAVAILABLE
    with pytest.raises(Unavailable):
        trainer.hidden.values()


def test_a_secret_that_is_not_set_is_the_user_s_mistake(stand):
    ended = stand.run("true", secrets=("MISSING",))
    assert (ended.ending, ended.code) == (Ending.REJECTED, 2)
    assert ended.error == "there is no secret MISSING: set it with `div secret set MISSING`."


@pytest.mark.parametrize("code", [1, 2, 75, 76, 127])
def test_a_command_s_exit_code_is_its_own_failure(stand, code):
    ended = stand.run("bash", "-c", f"echo last words; exit {code}")
    assert ended == Ended(ending=Ending.FAILED, code=code, error="last words")


@pytest.mark.parametrize(
    ("code", "ending"),
    [(2, Ending.REJECTED), (75, Ending.UNAVAILABLE), (76, Ending.SUPERSEDED), (1, Ending.FAILED)],
)
def test_the_exit_codes_of_sexpgpu_run_mean_what_they_say(stand, code, ending):
    program = stand.home / "directory/sexpgpu"
    program.write_text(f"#!/bin/bash\necho why\nexit {code}\n")
    program.chmod(0o755)
    assert stand.run("./sexpgpu", "run", "x.py") == Ended(ending=ending, code=code, error="why")


@pytest.mark.parametrize(("end", "code"), [("kill -9 $$", -9), ("exit 137", 137), ("exit 143", 143)])
def test_a_kill_is_an_interruption(stand, end, code):
    ended = stand.run("bash", "-c", f"echo x; {end}")
    assert (ended.ending, ended.code) == (Ending.INTERRUPTED, code)


def test_a_program_that_is_not_there_fails_and_says_so(stand):
    ended = stand.run("no-such-program")
    assert (ended.ending, ended.code) == (Ending.FAILED, 127)
    assert ended.error == "no-such-program cannot be started: No such file or directory"


def test_a_directory_that_is_nowhere_is_told(stand):
    ended = stand.run("true", tree="0" * 64)
    assert ended.ending is Ending.UNAVAILABLE
    assert "is not in" in str(ended.error)


def test_the_result_is_kept_masked_at_the_location_and_is_that_of_the_last_attempt(stand):
    write = 'echo "{\\"f1\\": 0.9, \\"note\\": \\"$TOKEN\\"}" > "$DIVERGENT_RESULT_PATH"'
    stand.run("bash", "-c", write, secrets=("TOKEN",))
    assert json.loads((stand.location / "result.json").read_text()) == {"f1": 0.9, "note": "***"}
    stand.run("true", number=2)
    assert not (stand.location / "result.json").exists()


@pytest.mark.parametrize(
    ("command", "is_ours"),
    [
        (["sexpgpu", "run", "x.py"], True),
        (["/venv/bin/sexpgpu", "run", "x.py"], True),
        (["python", "-m", "sexpgpu", "run", "x.py"], True),
        (["python3.11", "-m", "sexpgpu", "run"], True),
        (["sexpgpu", "check", "x.py"], False),
        (["python", "sexpgpu", "run"], False),
        (["bash", "-c", "sexpgpu run x.py"], False),
        (["sexpgpu"], False),
        (["python"], False),
    ],
)
def test_sexpgpu_run_is_known_by_its_words_and_opens_and_ends_its_experiment_itself(command, is_ours):
    assert is_sexpgpu_run(command) is is_ours
    assert record_of(ShipParameters(command=command, tree="0" * 64, slug="a")).announced is not is_ours


def test_checkpoints_lie_below_the_location():
    assert checkpoints_of("s3://bucket/a/") == "s3://bucket/a/checkpoints"


def test_how_a_command_ended_counts_also_where_its_last_words_cannot_be_kept(stand):
    """It was run again, without end: a full disk was taken for a command that had not been started."""
    ended = stand.run("bash", "-c", "rm ../attempt-0001.output-0")
    assert ended == Ended(ending=Ending.DONE, code=0)


@pytest.mark.parametrize(
    "write",
    ["mkfifo", "mkdir", "head -c 300000 /dev/zero >", "ln -s /dev/zero"],
    ids=["pipe", "directory", "large", "endless"],
)
@pytest.mark.timeout(30)
def test_a_result_that_is_none_is_not_kept_and_holds_up_nobody(stand, write):
    ended = stand.run("bash", "-c", f'{write} "$DIVERGENT_RESULT_PATH"')
    assert ended == Ended(ending=Ending.DONE, code=0)
    assert not (stand.location / "result.json").exists()
