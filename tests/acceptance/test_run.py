"""`sexpgpu run` from outside: what it writes, how it goes on, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import torch

from runtime.checkpoints.location import open_location
from tests.support.forge import QUICK_RETRIES, CallPlan
from tests.support.runs import EXPERIMENT, SmallRun, newest_points, notes
from tests.support.strict_json import strict_lines
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.forge import Forge, ForkedRun
    from tests.support.s3_proxy import S3Proxy
    from tests.support.seaweed import Bucket

UPDATE = "runtime.training.update:Updater.__call__"
RESTORE = "runtime.training.state:TrainingState.restore"
EVALUATION_BATCH = "runtime.training.evaluation:Evaluator._batch"

PAGE = """
    from dataclasses import dataclass

    import torch
    from torch import nn

    from sexpgpu import Batch, Evaluation, Experiment, Stage


    @dataclass(frozen=True)
    class Knobs:
        steps: int = 8


    class Tokens:
        def batch(self, index):
            return Batch(torch.full((2, 3), float(index + 1)), 2, num_tokens=6)


    def experiment(knobs):
        model = nn.Linear(3, 1)
        return Experiment(
            model=model,
            loss=lambda model, data: model(data).square().mean(),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            stages=[Stage("easy", Tokens(), until=4), Stage("hard", Tokens())],
            evaluations=[Evaluation(name="eval", loader=Tokens(), every=4, batches=2)],
            steps=knobs.steps,
            checkpoint_every=8,
        )
"""


def summary_of(run: ForkedRun) -> dict[str, Any]:
    (line,) = strict_lines(run.out.read_bytes())
    return line


def record_of(run: SmallRun) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(Path(run.location, "run.json").read_text())
    return record


def test_eight_steps_whose_second_stage_starts_at_four_contain_the_six_lines_of_the_page(
    forge: Forge, tmp_path: Path
):
    run = SmallRun(forge, tmp_path, source=PAGE)
    run.go()
    path = f"{run.location}/step-00000008"
    expected: list[dict[str, Any]] = [
        {
            "step": 4,
            "kind": "metric",
            "name": "eval/loss",
            "value": float,
            "metadata": {"pass": "eval", "split": "eval", "stage": "easy"},
        },
        {
            "step": 4,
            "kind": "annotation",
            "annotation": "stage easy -> hard",
            "metadata": {"from": "easy", "to": "hard"},
        },
        {
            "step": 4,
            "kind": "metric",
            "name": "train/loss",
            "value": float,
            "metadata": {"split": "train", "stage": "hard"},
        },
        {
            "step": 4,
            "kind": "metric",
            "name": "rate/tokens",
            "value": float,
            "metadata": {"split": "train", "stage": "hard"},
        },
        {
            "step": 8,
            "kind": "annotation",
            "annotation": f"checkpoint {path}",
            "metadata": {"checkpoint": path, "seconds": float},
        },
        {"kind": "done", "slug": "small"},
    ]
    lines = iter(run.events())
    for wanted in expected:
        assert any(_matches(line, wanted) for line in lines), f"missing, or out of order: {wanted}"


def _matches(line: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether the line has these fields in this order after its time; `float` stands for any number."""
    time, *fields = line
    return time == "ts_ms" and fields == list(wanted) and all(_same(line[key], wanted[key]) for key in wanted)


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(_same(found[key], wanted[key]) for key in wanted)
    return isinstance(found, float) if wanted is float else bool(found == wanted)


def test_the_points_of_a_step_stand_in_their_order(small: SmallRun):
    small.go()
    names = [event["name"] for event in small.events() if event["kind"] == "metric" and event["step"] == 5]
    assert names == ["train/loss", "error/max", "best", "train/grad_norm", "train/lr", "rate/tokens"]
    at_8 = [event["name"] for event in small.events() if event["kind"] == "metric" and event["step"] == 8]
    evaluation = ["eval/loss", "error/max", "best"]
    assert at_8 == [*evaluation, *evaluation, *names]


def test_the_summary_says_how_the_attempt_went(small: SmallRun):
    stopped = small.go(calls=CallPlan(call=UPDATE, at=7, signum=signal.SIGINT), code=130)
    path = f"{small.location}/step-00000007"
    said = summary_of(stopped)
    assert said.pop("seconds") > 0
    assert said == {
        "slug": "small", "status": "interrupted", "attempt": 1, "first_step": 0, "last_step": 7, "steps": 12,
        "checkpoint": path, "url": None, "dropped": 0, "unsent": 0,
    }  # fmt: skip
    said_last = notes(small.events())
    assert said_last[-1] == f"checkpoint {path}"
    assert "interrupted by SIGINT at step 7" in said_last[-3:]  # a save that was in flight may come between
    assert record_of(small)["ended"]["status"] == "interrupted"
    said = summary_of(small.go())
    assert (said["status"], said["attempt"], said["first_step"], said["last_step"]) == ("done", 2, 7, 12)


def test_without_a_signal_standard_output_has_what_was_asked_for_and_nothing_else(small: SmallRun):
    run = small.go()
    assert len(run.out.read_text().splitlines()) == 1
    assert "step 12/12" in run.err.read_text()


def test_what_a_file_and_all_that_it_imports_print_goes_to_standard_error(forge: Forge, tmp_path: Path):
    """Libraries print what they have downloaded: a stream of events, or a summary, was no JSON any more."""
    print_it = "__import__('this'); __import__('sys').stdout.write('written\\n')"
    source = EXPERIMENT.replace("x, y = examples", f"x, y = examples; {print_it}")
    run = SmallRun(forge, tmp_path, source=source).go("--steps=1", "--metrics=stdout")
    assert [line.get("kind", "summary") for line in strict_lines(run.out.read_bytes())][-2:] == [
        "done", "summary",
    ]  # fmt: skip
    assert "The Zen of Python" in run.said
    assert "written" in run.said


def test_with_the_target_stdout_the_summary_follows_the_last_event(small: SmallRun):
    lines = strict_lines(small.go("--metrics", "stdout").out.read_bytes())
    assert lines[-2]["kind"] == "done"
    assert lines[-1]["status"] == "done"
    assert lines[:-1] == small.events()


def test_a_run_without_a_slug_says_its_name_first(forge: Forge, tmp_path: Path):
    SmallRun(forge, tmp_path)
    run = forge.run(["run", "small.py"], folder=tmp_path)
    assert run.code == 0
    first = run.err.read_text().splitlines()[0]
    assert first.startswith("slug: small-20")


@pytest.mark.parametrize("keep", ["keep_last=60", "keep_every=1"])
def test_a_run_keeps_the_checkpoints_that_its_file_asks_for(forge: Forge, tmp_path: Path, keep: str):
    source = EXPERIMENT.replace("clip_norm=0.5,", f"clip_norm=0.5, {keep},")
    run = SmallRun(forge, tmp_path, source=source)
    run.go("--steps", "60", "--eval-every", "60", "--knob", "checkpoint_every=1")
    said = [event["step"] for event in run.events() if "seconds" in event.get("metadata", {})]
    assert len(said) > 2
    assert [entry["step"] for entry in record_of(run)["checkpoints"]] == said


# Going on


def test_three_resumes_in_a_row_with_no_step_between_change_nothing(
    small: SmallRun, forge: Forge, tmp_path: Path
):
    unbroken = SmallRun(forge, tmp_path / "unbroken")
    unbroken.go()
    small.go(calls=CallPlan(call=UPDATE, at=6, signum=signal.SIGTERM), code=143)
    for _ in range(3):
        small.go(calls=CallPlan(call=RESTORE, signum=signal.SIGTERM), code=143)
    small.go()
    small.outcome().assert_equals(unbroken.outcome())
    rates = [(event["step"], event["value"]) for event in small.events() if event.get("name") == "train/lr"]
    assert rates == [(step, 0.05 / (1 + step)) for step in range(12)]


def test_a_finished_run_that_is_resumed_trains_nothing_and_says_so(small: SmallRun):
    small.go()
    before = small.outcome()
    again = small.go()
    small.outcome().assert_equals(before)
    assert "is finished at step 12: nothing to train" in again.err.read_text()
    assert [event["kind"] for event in small.events()][-3:] == ["done", "open", "done"]
    assert summary_of(again)["checkpoint"] == f"{small.location}/step-00000012"
    opens = [event for event in small.events() if event["kind"] == "open"]
    assert opens[0] | {"ts_ms": 0} == opens[1] | {"ts_ms": 0}


def test_more_steps_of_a_finished_run_go_on_to_what_one_run_of_them_is(
    small: SmallRun, forge: Forge, tmp_path: Path
):
    every_5 = "--eval-every", "5"  # so that both evaluate at 10
    unbroken = SmallRun(forge, tmp_path / "unbroken", flags=every_5)
    unbroken.go()
    small.go("--steps", "10", *every_5)
    small.go(*every_5)
    small.outcome().assert_equals(unbroken.outcome())
    assert "knob steps 10 -> 12" in "\n".join(notes(small.events()))


def test_fewer_steps_than_are_done_train_nothing(small: SmallRun):
    small.go()
    run = small.go("--steps", "10")
    assert summary_of(run)["last_step"] == 12
    assert [event["kind"] for event in small.events()][-2:] == ["open", "done"]


def test_a_resume_says_which_files_and_knobs_moved(small: SmallRun):
    small.go(calls=CallPlan(call=UPDATE, at=6, signum=signal.SIGTERM), code=143)
    file = small.folder / "small.py"
    file.write_text(file.read_text() + "\n# edited\n")
    small.go("--knob", "eval_every=6")
    (event,) = [e for e in small.events() if e.get("annotation", "").startswith("resumed from ")]
    first, source, knob = event["annotation"].splitlines()
    assert first == f"resumed from {small.location}/step-00000006"
    assert event["step"] == 6
    assert source.startswith("source small.py ")
    assert len(source.split()[2]) == len(source.split()[4]) == 12
    assert knob == "knob eval_every 4 -> 6"
    assert event["metadata"] == {"checkpoint": first.removeprefix("resumed from "), "changed": [source, knob]}


def test_the_same_files_under_the_same_selection_have_moved_nothing(small: SmallRun):
    small.go(calls=CallPlan(call=UPDATE, at=6, signum=signal.SIGTERM), code=143)
    run = small.go()
    (event,) = [e for e in small.events() if e.get("annotation", "").startswith("resumed from ")]
    assert event["metadata"]["changed"] == []
    assert "no equality" not in run.err.read_text()


def test_a_stage_that_ends_on_a_value_ends_at_the_same_step_after_a_resume(forge: Forge, tmp_path: Path):
    source = EXPERIMENT.replace("import Batch, ", "import Batch, Reached, ").replace(
        "(4, 8, None)", '(Reached(evaluation="held-out", at_most=1e9), 8, None)'
    )
    unbroken = SmallRun(forge, tmp_path / "unbroken", source=source)
    unbroken.go()
    stages = [event for event in unbroken.events() if event.get("annotation", "").startswith("stage ")]
    assert [event["step"] for event in stages] == [4, 8]
    for call in (EVALUATION_BATCH, "runtime.training.loop:Loop._change_stage"):
        run = SmallRun(forge, tmp_path / call[-5:], source=source)
        run.go(calls=CallPlan(call=call, at=5, when="before", signum=signal.SIGTERM), code=143)
        run.go()
        run.outcome().assert_equals(unbroken.outcome())


def test_every_epoch_is_a_permutation_over_three_resumes(forge: Forge, tmp_path: Path):
    source = """
        from dataclasses import dataclass
        from pathlib import Path

        import torch
        from torch import nn

        from sexpgpu import Experiment, Stage, data

        LEDGER = Path("ledger")


        @dataclass(frozen=True)
        class Knobs:
            steps: int = 15
            seed: int = 0


        def loss(model, batch):
            (ids,) = batch
            with LEDGER.open("a") as ledger:
                ledger.write("".join(f"{number}\\n" for number in ids.tolist()))
            return model(ids[:, None].float()).square().mean()


        def experiment(knobs):
            model = nn.Linear(1, 1)
            examples = data.Tensors(torch.arange(10))
            return Experiment(
                model=model,
                loss=loss,
                optimizer=torch.optim.SGD(model.parameters(), lr=1e-4),
                stages=[Stage("only", data.Shuffled(examples, batch_size=2, seed=knobs.seed))],
                steps=knobs.steps,
                microbatches=2,
            )
    """
    run = SmallRun(forge, tmp_path, source=source)
    for _ in range(3):
        run.go(calls=CallPlan(call=UPDATE, at=3, signum=signal.SIGTERM), code=143)
    run.go()
    ids = [int(line) for line in (tmp_path / "ledger").read_text().split()]
    epochs = [ids[start : start + 10] for start in range(0, 60, 10)]
    assert len(ids) == 60
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_evaluating_or_logging_more_changes_no_weight(forge: Forge, tmp_path: Path):
    outcomes = []
    for number, flags in enumerate(
        [(), ("--eval-every", "1"), ("--eval-every", "7"), ("--eval-every", "1000"), ("--knob", "noise=loud")]
    ):
        run = SmallRun(forge, tmp_path / str(number), flags=flags)
        run.go()
        outcomes.append(run.outcome())
    first, *others = outcomes
    for other in others:
        assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in first.tensors.items())


def test_loader_workers_change_no_bit(forge: Forge, tmp_path: Path):
    outcomes = []
    for workers in ("0", "2"):
        run = SmallRun(
            forge, tmp_path / workers, flags=("--knob", f"workers={workers}", "--knob", "noise=loud")
        )
        run.go()
        outcomes.append(run.outcome())
    outcomes[0].assert_equals(outcomes[1])


@pytest.mark.parametrize(
    "flags",
    [
        ("--knob", "optimizer=fused"),
        ("--knob", "optimizer=SGD"),
        ("--knob", "precision=bf16"),
        ("--knob", "precision=fp16"),
        ("--knob", "microbatches=4"),
        ("--knob", "workers=2"),
    ],
    ids=lambda flags: flags[1],
)
def test_killed_in_the_middle_every_kind_of_run_ends_with_the_same_bits(
    forge: Forge, tmp_path: Path, flags: tuple[str, ...]
):
    unbroken = SmallRun(forge, tmp_path / "unbroken", flags=flags)
    unbroken.go()
    run = SmallRun(forge, tmp_path / "killed", flags=flags)
    run.go(calls=CallPlan(call="runtime.training.precision:Precision.backward", at=15), code=-signal.SIGKILL)
    run.go(calls=CallPlan(call=UPDATE, at=2, signum=signal.SIGTERM), code=143)
    run.go()
    run.outcome().assert_equals(unbroken.outcome())


def test_what_cannot_be_pinned_is_said_and_no_equality_claimed(small: SmallRun):
    small.go(calls=CallPlan(call=UPDATE, at=6, signum=signal.SIGTERM), code=143)
    run = small.go("--knob", "precision=bf16")
    assert (
        "no equality with an unbroken run is claimed: precision was 'fp32' and is 'bf16'"
        in run.err.read_text()
    )


# Signals


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_still_saves_with_loader_workers(
    forge: Forge, tmp_path: Path, signum: signal.Signals
):
    """A terminal's Ctrl-C, or a cancelled job, signals every process of the group at once."""
    flags = ("--knob", "workers=2")
    run = SmallRun(forge, tmp_path, flags=(*flags, "--steps", "100000", "--eval-every", "100000"))
    process = run.start()
    wait_until(lambda: b'"step":3,' in _bytes(run), within_s=40, poll_s=0.01)
    os.killpg(process.pid, signum)
    assert process.wait() == 128 + signum
    wait_until(lambda: _group_is_gone(process.pid), within_s=40)
    # A checkpoint that was due at that very boundary may still be stored in between.
    (interrupted,) = [event for event in run.events() if event.get("metadata", {}).get("signal")]
    assert interrupted["annotation"] == f"interrupted by {signum.name} at step {interrupted['step']}"
    assert notes(run.events())[-1].endswith(f"/step-{interrupted['step']:08d}")


def test_a_loader_whose_workers_die_of_the_signal_first_loses_nothing(forge: Forge, tmp_path: Path):
    source = EXPERIMENT.replace(
        "stages = [(name, data.Workers(examples, processes=knobs.workers)) for name, examples in stages]",
        "stages = [(name, Fragile(examples)) for name, examples in stages]",
    ).replace(
        "    class Net(",
        """    class Fragile:
        def __init__(self, loader):
            self.loader = loader

        def batch(self, index):
            import os, signal
            if os.environ.get("DIE") == "yes" and index == 5:
                child = os.fork()
                if child == 0:
                    signal.pause()
                os.killpg(0, signal.SIGTERM)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                raise RuntimeError(f"worker ended with {code}")
            return self.loader.batch(index)


    class Net(""",
    )
    unbroken = SmallRun(forge, tmp_path / "unbroken", source=source)
    unbroken.go()
    run = SmallRun(forge, tmp_path / "signalled", source=source)
    run.go(env={"DIE": "yes"}, code=143)
    assert notes(run.events())[-1] == f"checkpoint {run.location}/step-00000002"
    run.go()
    run.outcome().assert_equals(unbroken.outcome())


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_torch_is_imported_ends_the_command_at_once(
    forge: Forge, tmp_path: Path, signum: signal.Signals
):
    """The installed command as its users start it: no fork, no torch yet."""
    run = SmallRun(forge, tmp_path)
    command = [str(Path(sys.executable).with_name("sexpgpu")), *run.arguments()]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        wait_until(lambda: "libtorch_cpu" in maps.read_text(), within_s=60, poll_s=0.005)
        process.send_signal(signum)
        assert process.wait(60) == 128 + signum
        assert process.stderr is not None
        (line,) = process.stderr.read().splitlines()
        assert f"interrupted by {signum.name}" in line
    assert not Path(run.location).exists()
    assert not run.file.exists()


@pytest.mark.parametrize(
    "call",
    [
        "runtime.events.stream:EventStream.done",
        "runtime.checkpoints.attempt:Attempt.end",
        "runtime.training.attempt_run:AttemptRun.execute",
    ],
)
def test_a_signal_right_after_done_takes_nothing_back(small: SmallRun, call: str):
    run = small.go(calls=CallPlan(call=call, when="after", signum=signal.SIGTERM))
    assert summary_of(run)["status"] == record_of(small)["ended"]["status"] == "done"
    assert [event["kind"] for event in small.events()].count("done") == 1
    assert not [text for text in notes(small.events()) if text.startswith("interrupted")]


def test_a_signal_while_something_compiles_ends_within_the_notice_and_leaves_no_process(
    small: SmallRun, tmp_path: Path
):
    plan = CallPlan(call="torch._inductor.compile_fx:compile_fx", signum=signal.SIGTERM)
    run = small.go(
        *("--notice", "1", "--knob", "compile=true"),
        calls=plan,
        code=143,
        env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert (
        "the notice of 1 s is over, ending where the run stands; all that a checkpoint should hold is held"
        in run.said
    )
    assert [event["kind"] for event in small.events() if event["kind"] != "metric"] == ["open"]
    assert record_of(small)["checkpoints"] == []
    wait_until(lambda: _group_is_gone(run.pid), within_s=40)


def test_without_a_location_a_signal_is_annotated_and_nothing_is_saved(forge: Forge, tmp_path: Path):
    run = SmallRun(forge, tmp_path)
    arguments = ["run", "small.py", "--slug", "s", "--metrics", f"jsonl:{run.file}"]
    plan = CallPlan(call=UPDATE, at=3, signum=signal.SIGTERM)
    assert forge.run(arguments, folder=tmp_path, calls=plan).code == 143
    assert notes(run.events()) == ["interrupted by SIGTERM at step 3"]


def test_a_signal_that_finds_a_state_which_no_checkpoint_can_keep_is_said_once(forge: Forge, tmp_path: Path):
    source = EXPERIMENT.replace('"value": self.value', '"value": self.value if self.value > 1e9 else {1, 2}')
    run = SmallRun(forge, tmp_path, source=source)
    process = run.go(calls=CallPlan(call=UPDATE, at=3, signum=signal.SIGTERM), code=75)
    assert notes(run.events()) == ["interrupted by SIGTERM at step 3"]
    assert "state.best.value is a set, which a checkpoint cannot keep" in process.said


def test_a_second_signal_gives_up_the_save_and_exits_on_what_is_published(
    small: SmallRun, bucket: Bucket, s3_proxy: S3Proxy
):
    run = SmallRun(small.forge, small.folder, location=bucket.url, env=bucket.server.env(s3_proxy.endpoint))
    s3_proxy.fail("hang", method="PUT", path="step-00000003/")
    process = run.start(calls=CallPlan(call=UPDATE, at=3, signum=signal.SIGTERM))
    wait_until(
        lambda: any("step-00000003" in path for _, path in s3_proxy.requests), within_s=40, poll_s=0.01
    )
    assert process.code is None
    wait_until(lambda: _passed(process), within_s=40)
    process.signal(signal.SIGTERM)
    assert process.wait() == 143
    assert notes(run.events())[-1] == "interrupted by SIGTERM at step 3"


def _passed(process: ForkedRun) -> bool:
    """Half a second after the first signal, which the interruption's annotation came after."""
    time.sleep(0.6)  # a second signal is one that comes half a second later: this is the fact itself
    return process.code is None


def test_an_upload_that_hangs_ends_with_the_notice_and_the_exit_code_says_so(
    small: SmallRun, bucket: Bucket, s3_proxy: S3Proxy
):
    run = SmallRun(small.forge, small.folder, location=bucket.url, env=bucket.server.env(s3_proxy.endpoint))
    s3_proxy.fail("hang", method="PUT", path="step-00000003/")
    process = run.go("--notice", "2", calls=CallPlan(call=UPDATE, at=3, signum=signal.SIGTERM), code=75)
    assert summary_of(process)["seconds"] < 15  # of 20 that it has unless told, and 30 that the client waits
    assert "not stored" in process.err.read_text()


# Endings


def test_a_failed_run_says_so_last_but_one_and_exits_1(forge: Forge, tmp_path: Path):
    source = EXPERIMENT.replace("x, y = examples", "x, y = examples; 1 / (best.patience - 4)")
    run = SmallRun(forge, tmp_path, source=source)
    process = run.go(code=1)
    *_, failed, done = run.events()
    assert failed["annotation"] == "failed: ZeroDivisionError: division by zero"
    assert failed["metadata"] == {"error": "ZeroDivisionError: division by zero"}
    assert done["kind"] == "done"
    assert "Traceback" in process.err.read_text()
    assert summary_of(process)["status"] == "failed"
    assert record_of(run)["ended"]["status"] == "failed"


MUTE = "type('Mute', (Exception,), {'__str__': lambda _: 1 / 0})"


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        ("SystemExit", "SystemExit: 0"),
        ("KeyboardInterrupt", "KeyboardInterrupt: 0"),
        ("GeneratorExit", "GeneratorExit: 0"),
        (MUTE, "Mute: it has no text"),
    ],
    ids=["system", "keyboard", "generator", "mute"],
)
def test_a_file_that_exits_by_itself_is_a_failed_run(forge: Forge, tmp_path: Path, raised: str, says: str):
    source = EXPERIMENT.replace("x, y = examples", f"x, y = examples; raise {raised}(0)")
    run = SmallRun(forge, tmp_path, source=source)
    run.go(code=1)
    assert notes(run.events())[-1] == f"failed: {says}"
    assert record_of(run)["ended"]["status"] == "failed"


LAST_MOMENTS = {
    "exit": """
import atexit, os, sys

atexit.register(os.kill, os.getpid(), {signum:d})
atexit.register(lambda: sys.stdout.write("what is printed then is no answer either"))
""",
    "teardown": """
import os

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, {signum:d})

import builtins
builtins.late = Late()
""",
}


@pytest.mark.parametrize(
    ("moment", "signum", "code"),
    [  # every two of these meet
        ("exit", signal.SIGTERM, 0),
        ("exit", signal.SIGINT, 2),
        ("teardown", signal.SIGTERM, 2),
        ("teardown", signal.SIGINT, 0),
    ],
)
def test_a_signal_in_the_last_moments_of_a_process_changes_nothing_of_how_it_ends(
    tmp_path: Path, moment: str, signum: signal.Signals, code: int
):
    """The interpreter gives the kernel its signals back long before it has cleared up what torch has left."""
    flags = ["--knob", "optimiser=SGD"] if code else []
    file = tmp_path / "small.py"
    file.write_text(dedent(EXPERIMENT) + LAST_MOMENTS[moment].format(signum=signum))
    sexpgpu = Path(sys.executable).with_name("sexpgpu")
    command = [str(sexpgpu), "run", str(file), "--slug=a", "--device=cpu", "--json", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == code, ended.stderr
    assert len(ended.stdout.splitlines()) == (code == 0)


def test_a_signal_while_a_checkpoint_is_read_does_not_wait_for_it(
    small: SmallRun, bucket: Bucket, s3_proxy: S3Proxy
):
    run = SmallRun(small.forge, small.folder, location=bucket.url, env=bucket.server.env(s3_proxy.endpoint))
    run.go(calls=CallPlan(call=UPDATE, at=6, signum=signal.SIGTERM), code=143)
    location = open_location(bucket.url, bucket.env)
    before, events = location.record(), run.file.read_bytes()
    asked = len(s3_proxy.requests)
    s3_proxy.fail("hang", method="GET", path="tensors-")
    process = run.start()
    wait_until(
        lambda: any("tensors-" in path for _, path in s3_proxy.requests[asked:]), within_s=40, poll_s=0.01
    )
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait() == 143
    assert time.monotonic() - began < 10  # of 20 that the notice has, and 30 that the client waits
    assert process.said.splitlines()[-1] == "sexpgpu: interrupted by SIGTERM"
    assert (location.record(), run.file.read_bytes()) == (before, events)


def test_a_summary_that_nobody_reads_changes_nothing_of_how_a_run_ends(tmp_path: Path):
    (tmp_path / "small.py").write_text(dedent(EXPERIMENT))
    sexpgpu = Path(sys.executable).with_name("sexpgpu")
    reader, writer = os.pipe()
    os.close(reader)
    command = [str(sexpgpu), "run", "small.py", "--slug=a", "--device=cpu", "--json"]
    ended = subprocess.run(
        command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=150, check=False
    )
    os.close(writer)
    assert ended.returncode == 0, ended.stderr
    assert "the summary could not be printed" in ended.stderr


def test_a_loss_that_is_no_number_is_said_once(forge: Forge, tmp_path: Path):
    run = SmallRun(forge, tmp_path, source=EXPERIMENT.replace("return value", "return value * float('nan')"))
    said = run.go().said
    assert said.count("train/loss is nan at step 0") == said.count("train/loss is") == 1


def test_a_thread_of_the_file_that_never_ends_does_not_keep_the_process(tmp_path: Path):
    """Python waits for it at its end: a finished run held its GPU, and its flow waited for ever."""
    thread = "\nimport threading\nthreading.Thread(target=threading.Event().wait, name='logger').start()\n"
    file = tmp_path / "small.py"
    file.write_text(dedent(EXPERIMENT) + thread)
    sexpgpu = Path(sys.executable).with_name("sexpgpu")
    command = [str(sexpgpu), "run", str(file), "--slug=a", f"--location={tmp_path / 'kept'}", "--device=cpu"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "threads of the file that do not end: logger" in ended.stderr


def test_a_shape_that_moved_is_the_users_mistake_and_touches_nothing(small: SmallRun):
    small.go(calls=CallPlan(call=UPDATE, at=6, signum=signal.SIGTERM), code=143)
    before = record_of(small), small.file.read_bytes()
    file = small.folder / "small.py"
    file.write_text(file.read_text().replace("nn.Linear(4, 8)", "nn.Linear(4, 8, bias=False)"))
    process = small.go(code=2)
    (line,) = process.err.read_text().splitlines()
    assert "model/hidden.bias is float32 [8] in it and missing here" in line
    checked = small.forge.run(["check", *small.arguments()[1:]], folder=small.folder)
    assert (checked.code, checked.said.splitlines()) == (2, [line])
    assert (record_of(small), small.file.read_bytes()) == before


def test_a_location_that_cannot_be_reached_is_75_and_the_events_stay_untouched(forge: Forge, tmp_path: Path):
    env = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    run = SmallRun(forge, tmp_path, location="s3://nowhere", env=env)
    process = run.go(code=75)
    assert len(process.err.read_text().splitlines()[-1]) > 20
    assert not run.file.exists()


def test_a_final_checkpoint_that_cannot_be_stored_is_75_and_no_done(
    small: SmallRun, bucket: Bucket, s3_proxy: S3Proxy
):
    run = SmallRun(small.forge, small.folder, location=bucket.url, env=bucket.server.env(s3_proxy.endpoint))
    s3_proxy.fail("forbid", method="PUT", path="step-00000012/")
    process = run.go(code=75, env=QUICK_RETRIES)
    assert "done" not in {event["kind"] for event in run.events()}
    assert summary_of(process)["status"] == "interrupted"
    s3_proxy.heal()
    run.go()
    assert run.events()[-1]["kind"] == "done"


def test_an_older_attempt_that_wakes_up_is_superseded_and_publishes_nothing(
    small: SmallRun, forge: Forge, tmp_path: Path
):
    unbroken = SmallRun(forge, tmp_path / "unbroken")
    unbroken.go()
    flags = ("--steps", "12")
    # Before its first save: one that is stopped while it holds the record's lock holds up everybody.
    zombie = small.start(*flags, calls=CallPlan(call=UPDATE, at=3, signum=signal.SIGSTOP))
    wait_until(lambda: _is_stopped(zombie.pid), within_s=40, poll_s=0.01)
    newer = SmallRun(forge, small.folder, location=small.location)
    newer.go()
    before = record_of(small)
    zombie.signal(signal.SIGCONT)
    assert zombie.wait() == 76
    assert record_of(small) == before
    newest = small.outcome()
    newest.assert_equals(unbroken.outcome())
    assert newest.points == newest_points(unbroken.events())
    assert summary_of(zombie)["status"] == "superseded"


def test_a_torn_last_line_is_mended_before_anything_is_written(small: SmallRun):
    small.go(calls=CallPlan(call=UPDATE, at=6, signum=signal.SIGTERM), code=143)
    whole = small.file.read_bytes()
    small.file.write_bytes(whole + b'{"ts_ms":17901895970')
    small.go()
    assert small.file.read_bytes().startswith(whole)
    assert small.events()[-1]["kind"] == "done"


def _group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _bytes(run: SmallRun) -> bytes:
    return run.file.read_bytes() if run.file.exists() else b""
