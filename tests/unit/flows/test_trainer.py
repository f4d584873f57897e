"""One attempt on this host: its command line, its GPUs, and how its ending is told."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from flows.endings import Ended, Ending
from flows.experiment_trainer import SexpgpuTrainer, sexpgpu_command
from flows.hidden import Hidden
from flows.ledger import Entry, Ledger
from flows.parameters import TrainParameters
from flows.processes import host_name
from flows.pulse import Upkeep
from flows.report import Report
from flows.trainer import oom_kills, work_folder
from runtime.checkpoints.memory import MemoryStore
from runtime.errors import Unavailable
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flows.processes import ProcessId


class Stand:
    """A trainer whose program is a few lines of Python in place of `sexpgpu run`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.experiment = folder / "exp.py"
        self.experiment.write_text("")
        self.report = Report(
            slug="a", flow_run_id="f", events=folder / "events.jsonl", log=logging.getLogger("run")
        )
        self.told: dict[str, Any] = {}
        self.masked_in_telemetry: dict[str, str] = {}
        self.left: dict[int, Path] = {}
        self.secrets: dict[str, str] | None = {"TOKEN": "hunter2-but-longer"}
        self.started: list[ProcessId | None] = []
        self.on_start: Callable[[ProcessId | None], None] = self.started.append

    def run(
        self, program: str, *, number: int = 1, environment: dict[str, str] | None = None, **changes: Any
    ) -> Ended:
        given = {"experiment": str(self.experiment), "slug": "a", "location": "/l", "notice_s": 5.0}

        def command(parameters: TrainParameters, **told: Any) -> list[str]:
            del parameters
            self.told = told
            return [sys.executable, "-c", dedent(program)]

        environment = {**os.environ, "SLUGLINE_GPUS": "0", **(environment or {})}
        page: Any = SimpleNamespace(follow=self.follow)
        trainer = SexpgpuTrainer(
            page=page,
            parameters=TrainParameters(**{**given, **changes}),
            folder=self.folder,
            command=command,
            environment=environment,
            hidden=Hidden(self.read_secrets, environment),
            report=self.report,
            upkeep=Upkeep(MemoryStore(), "t", progress=self.report.steps),
        )
        return trainer(number, self.on_start)

    @contextlib.contextmanager
    def follow(
        self, _number: int, *, secrets: Mapping[str, str], left: Mapping[int, Path], **_: Any
    ) -> Iterator[None]:
        self.masked_in_telemetry, self.left = dict(secrets), dict(left)
        yield

    def read_secrets(self) -> dict[str, str]:
        if self.secrets is None:
            raise Unavailable("Prefect is away")
        return self.secrets


@pytest.fixture
def stand(tmp_path) -> Stand:
    return Stand(tmp_path)


def test_a_run_that_is_done_is_told_with_what_metrics_has_not_taken(stand):
    ended = stand.run('print(\'{"status":"done","unsent":3}\')')
    assert (ended.ending, ended.code, ended.unsent) == (Ending.DONE, 0, 3)
    assert stand.started[0] is not None


def test_the_experiments_page_is_known_while_the_trainer_still_runs(stand):
    seen = []
    page = "http://m/dashboard/experiments/1"

    def look(_trainer: ProcessId | None) -> None:
        wait_until(lambda: (stand.report.read(), stand.report.page)[1], within_s=60)
        seen.append(stand.report.page)
        (stand.folder / "seen").touch()

    stand.on_start = look
    stand.run(f"""
        import os, sys, time
        print("INFO: the experiment's page: {page}", file=sys.stderr, flush=True)
        while not os.path.exists("seen"):
            time.sleep(0.01)
    """)
    assert seen == [page]


@pytest.mark.parametrize("output", ["", "no json", "[1]", "\\xff", '{"unsent":null}'])
def test_a_summary_that_is_none_is_no_failure(stand, output):
    ended = stand.run(f"print('{output}')")
    assert (ended.ending, ended.unsent) == (Ending.DONE, 0)


def test_a_failure_is_told_as_its_annotation_says(stand):
    line = {
        "kind": "annotation",
        "step": 4,
        "annotation": "failed: ValueError: x",
        "metadata": {"error": "ValueError: x"},
    }
    ended = stand.run(
        f"print({json.dumps(json.dumps(line))}, file=open('events.jsonl', 'w')); raise SystemExit(1)"
    )
    assert (ended.ending, ended.step, ended.error) == (Ending.FAILED, 4, "ValueError: x")


def test_a_failure_without_an_annotation_is_told_by_the_last_line_of_the_log(stand):
    ended = stand.run("import sys; print('one\\nlast words', file=sys.stderr); raise SystemExit(1)")
    assert (ended.step, ended.error) == (None, "last words")


@pytest.mark.parametrize(("code", "ending"), [(2, Ending.REJECTED), (75, Ending.UNAVAILABLE)])
def test_a_refusal_is_told_by_its_one_line(stand, code, ending):
    ended = stand.run(f"import sys; print('sexpgpu: why', file=sys.stderr); raise SystemExit({code})")
    assert ended == Ended(ending=ending, code=code, error="sexpgpu: why")


def test_a_kill_is_told_by_its_signal_alone(stand):
    ended = stand.run("import os; print('x', flush=True); os.kill(os.getpid(), 9)")
    assert ended == Ended(ending=Ending.INTERRUPTED, code=-9)


def test_secrets_are_masked_in_its_log_its_telemetry_in_prefect_and_in_how_it_ended(stand, caplog):
    """Those of shipped commands were; an experiment prints and raises what it finds just as well."""
    caplog.set_level(logging.INFO)
    event = {"kind": "annotation", "step": 4, "annotation": "failed: x", "metadata": {"error": "with KEY"}}
    ended = stand.run(
        f"""
        import os, sys
        print("with hunter2-but-longer", os.environ["AWS_SECRET_ACCESS_KEY"], file=sys.stderr)
        line = {json.dumps(event)!r}.replace("KEY", "hunter2-but-longer")
        print(line, file=open("events.jsonl", "w"))
        raise SystemExit(1)
        """,
        environment={"AWS_SECRET_ACCESS_KEY": "of-the-worker"},
    )
    assert (ended.step, ended.error) == (4, "with ***")
    assert (stand.folder / "attempt-0001.log").read_text() == "with *** ***\n"
    assert [record.message for record in caplog.records if record.name == "run"][-1] == "with *** ***"
    assert {"hunter2-but-longer", "of-the-worker"} <= {*stand.masked_in_telemetry.values()}
    assert list(stand.folder.glob("*.output-*")) == []


def test_the_log_of_an_attempt_that_was_begun_again_on_another_host_is_that_host_s(stand):
    """One that dies before it claims the run leaves its number to the next: what it said here, told as that
    one's when the run came back, took the place of all that the other had logged.
    """
    for number in (1, 2):
        stand.folder.joinpath(f"attempt-{number:04d}.log").write_text("importing\n")
    entry = Entry(number=1, host=host_name(), started_ms=1, start_step=0)
    began_here = [entry, replace(entry, number=2)]
    stand.report.ledger = Ledger(slug="a", attempts=(*began_here, replace(entry, number=2, host="another")))
    stand.run("", number=3)
    assert [log.name for log in stand.left.values()] == ["attempt-0001.log"]


def test_what_any_earlier_attempt_left_here_is_finished_and_told(stand):
    """Only the last one's was: what a first attempt left was lost when the second died as soon."""
    logs = {number: stand.folder / f"attempt-{number:04d}.log" for number in (1, 2, 3)}
    for number in (1, 2):
        logs[number].write_text("told\n")
        (stand.folder / f"attempt-{number:04d}.output-5").write_text("not told\n")
    (stand.folder / "attempt-best.log").touch()  # the experiment's own: it ended the run with a traceback
    stand.run("", number=4)
    assert stand.left == {number: logs[number] for number in (1, 2)}
    assert [log.read_text() for log in stand.left.values()] == ["told\nnot told\n"] * 2


def test_without_the_secrets_nothing_is_begun(stand):
    stand.secrets = None
    assert stand.run("raise SystemExit(0)").ending is Ending.UNAVAILABLE
    assert stand.started == []


def test_a_file_that_is_missing_on_this_host_is_waited_for_without_a_process(stand):
    stand.experiment.unlink()
    ended = stand.run("raise SystemExit(0)")
    assert (ended.ending, ended.code) == (Ending.UNAVAILABLE, 75)
    assert "is not on this host" in str(ended.error)
    assert stand.started == []


def test_more_gpus_than_the_host_has_is_the_users_mistake(stand):
    ended = stand.run("raise SystemExit(0)", gpus=3)
    assert (ended.ending, ended.code) == (Ending.REJECTED, 2)
    assert "got 3" in str(ended.error)


SEES = "import os; open('sees', 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.mark.parametrize(
    ("pretended", "changes", "sees"),
    [
        ("0", {}, ""),
        ("2", {}, "0"),
        ("2", {"gpus": 2}, "0,1"),
        ("2", {"gpus": 0}, ""),
        ("2", {"device": "cpu"}, ""),
    ],
)
def test_a_trainer_sees_the_gpus_that_were_leased_for_it(stand, tmp_path, pretended, changes, sees):
    environment = {"SLUGLINE_GPUS": pretended, "SLUGLINE_GPU_LOCKS": str(tmp_path / "locks")}
    stand.run(SEES, environment=environment, **changes)
    assert (tmp_path / "sees").read_text() == sees


def test_a_trainer_is_told_nothing_of_its_flow_process_but_the_life_line(stand, tmp_path):
    program = """
        import os
        told = [name for name in os.environ if name.startswith("PREFECT__")]
        open("told", "w").write(",".join(told))
        os.fstat(int(os.environ["SLUGLINE_LIFELINE_FD"]))
    """
    assert stand.run(program, environment={"PREFECT__CONTROL_TOKEN": "secret"}).ending is Ending.DONE
    assert (tmp_path / "told").read_text() == ""


def test_a_host_that_has_no_room_for_it_is_waited_for(stand):
    """A full disk, a work folder that is gone: the run Failed for good."""
    (stand.folder / "attempt-0001.json").mkdir()
    ended = stand.run("")
    assert (ended.ending, ended.code) == (Ending.UNAVAILABLE, 75)
    assert "not started on this host: " in str(ended.error)


def test_a_target_of_the_worker_that_the_run_names_too_is_meant_once(stand):
    """`sexpgpu run` refuses one that stands there twice."""
    stand.run("", environment={"SLUGLINE_TARGETS": "syvain"}, targets=("syvain", "stdout"))
    assert stand.told["targets"] == ("syvain", "stdout")


def test_targets_of_the_worker_come_before_those_of_the_run(stand):
    stand.run("", environment={"SLUGLINE_TARGETS": "syvain stdout"}, targets=("jsonl:/x",))
    assert stand.told["targets"] == ("syvain", "stdout", "jsonl:/x")


def command(**changes: Any) -> list[str]:
    given = {"experiment": "/e.py", "slug": "a", "location": "s3://bucket/a", **changes}
    return sexpgpu_command(
        TrainParameters(**given),
        experiment=Path("/e.py"),
        events=Path("/w/events.jsonl"),
        targets=("syvain",),
        num_gpus=given.get("gpus") or 0,
    )


def test_the_command_line_says_what_is_set_and_nothing_else():
    program, *words = command()
    assert program == str(Path(sys.executable).with_name("sexpgpu"))
    assert words == [
        *("run", "/e.py", "--json", "--slug=a", "--location=s3://bucket/a", "--notice=20"),
        *("--metrics=jsonl:/w/events.jsonl", "--metrics=syvain"),
    ]


def test_every_parameter_of_the_training_is_on_the_command_line():
    words = command(
        folder="lm",
        variant="big",
        steps=9,
        eval_every=1,
        device="cuda",
        gpus=2,
        notice_s=7.5,
        precision="bf16",
        knobs={"lr": 0.001, "name": "a b", "on": True, "none": None, "n": 3},
    )
    assert {
        "--folder=lm",
        "--variant=big",
        "--steps=9",
        "--eval-every=1",
        "--device=cuda",
        "--devices=0,1",
    } <= {*words}
    assert "--notice=7.5" in words
    knobs = [word.removeprefix("--knob=") for word in words if word.startswith("--knob=")]
    assert knobs == ["lr=0.001", "name=a b", "on=true", "none=null", "n=3", "precision=bf16"]


def test_a_runs_folder_is_its_own_and_below_what_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    given = TrainParameters(experiment="m", slug="a/b")
    assert work_folder(given, {}) == tmp_path / "home/.local/state/slugline/a%2Fb"
    assert work_folder(given, {"SLUGLINE_WORK_DIR": str(tmp_path)}) == tmp_path / "a%2Fb"
    assert (tmp_path / "a%2Fb").is_dir()


def test_a_runs_folder_is_whole_and_one_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    """The trainer works in it: a relative one was another folder there, and no event was ever seen."""
    monkeypatch.chdir(tmp_path)
    given = TrainParameters(experiment="m", slug="a")
    assert work_folder(given, {"SLUGLINE_WORK_DIR": "runs"}) == tmp_path / "runs/a"
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"file/a cannot be made .*: set SLUGLINE_WORK_DIR"):
        work_folder(given, {"SLUGLINE_WORK_DIR": "file"})


def test_the_count_of_kills_for_memory_is_a_number_on_every_host():
    assert oom_kills() >= 0
