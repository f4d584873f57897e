from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runtime.checkpoints.location import open_location
from runtime.cli.arguments import parse_arguments
from runtime.cli.check import check
from runtime.cli.request import read_request
from runtime.errors import Rejected, Unavailable
from tests.support.experiments import SMALL, write_project

EXPERIMENTS = Path(__file__).parents[3] / "flows" / "experiments"


def checked(root: Path, *flags: str, source: str = SMALL) -> str:
    path = write_project(root, {"small.py": source})
    given = parse_arguments(["check", str(path), "--device", "cpu", *flags])
    return check(read_request(given, {}, now=datetime.now(UTC)), {})


def test_the_table_says_what_would_be_trained(tmp_path: Path):
    table = checked(tmp_path, "--variant", "tiny", "--knob", "mode=hard")
    expected = """\
entry         small.py
variant       tiny
device        cpu
knobs         steps       2
              eval_every  4
              rate        0.25
              mode        "hard"
              noisy       false
              name        "plain"
              seed        0
parameters    4, of which 4 are trained
steps         2, each of 2 microbatches in fp32
checkpoints   every 4 steps and at the end
stages        easy  until step 1; batch 0: 2 examples, 6 tokens
              hard  to the end; batch 0: 2 examples, 6 tokens
evaluations   eval  every 4 steps, 3 batches; batch 0: 2 examples, 6 tokens
sources       small.py"""
    assert table.startswith(expected)
    assert [line.split()[-2] for line in table.splitlines()[-2:]] == ["<core>", "<std/optim>"]


def test_a_condition_a_start_and_what_is_left_unset_are_said(tmp_path: Path):
    source = (
        SMALL.replace("until=knobs.steps // 2", 'until=Reached(evaluation="eval", at_most=0.5)')
        .replace("batches=3", "batches=3, at_start=True")
        .replace("        checkpoint_every=4,\n", "")
        .replace(", num_tokens=6", "")
    )
    table = checked(tmp_path, source=source)
    assert "easy  until eval/loss of eval <= 0.5; batch 0: 2 examples\n" in table
    assert "eval  at the start, every 4 steps, 3 batches" in table
    assert "checkpoints   at the end\n" in table
    bare = checked(
        tmp_path, source=SMALL.replace("evaluations=[Evaluation", "evaluations=[][:0] and [Evaluation")
    )
    assert "evaluations   none\n" in bare


@pytest.mark.parametrize(("file", "needs"), [("python_lm.py", "torch"), ("digits.py", "sklearn")])
def test_the_experiments_that_ship_with_us_pass(file: str, needs: str):
    pytest.importorskip(needs)
    given = parse_arguments(["check", str(EXPERIMENTS / file), "--variant=tiny", "--device=cpu"])
    table = check(read_request(given, {}, now=datetime.now(UTC)), {})
    assert f"entry         {file}\nvariant       tiny\n" in table


def test_json_is_the_identity(tmp_path: Path):
    decoded = json.loads(checked(tmp_path, "--json"))
    assert list(decoded) == ["sexpgpu", "entry", "variant", "knobs", "run", "sources", "device", "devices"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("float(index)), 2", "1 / index), 2", "batch 0 of stage 'easy' cannot be drawn: ZeroDivisionError"),
        ("torch.full((2, 3), float(index))", "[index]", "batch 0 of stage 'easy' holds no tensor"),
        (
            "float(index))",
            "0.0, device='meta')",
            "batch 0 of stage 'easy' must be on the CPU, got a tensor on meta",
        ),
        ("return Batch(", "return (", "the loader of stage 'easy' must return a Batch, got a tuple"),
        ("return Batch(", "raise SystemExit(", "batch 0 of stage 'easy' cannot be drawn: SystemExit: "),
        ("float(index)), 2", "0.0), 0", "cannot be drawn: Batch.num_examples must be an integer, at least 1"),
    ],
)
def test_a_loader_that_cannot_be_trained_on_is_refused(tmp_path: Path, old: str, new: str, message: str):
    source = SMALL.replace(", num_tokens=6", "")
    assert old in source
    with pytest.raises(Rejected) as refused:
        checked(tmp_path, source=source.replace(old, new))
    assert message in str(refused.value)


@pytest.mark.parametrize("loader", ["Ones()", "data.Workers(Ones(), processes=1)"])
def test_a_file_that_a_loader_reads_and_this_host_lacks_is_no_mistake(tmp_path: Path, loader: str):
    """It is opened with the first batch; the workers that a run is scheduled for may have it."""
    source = SMALL.replace("torch.full((2, 3), float(index))", "open('/nowhere/corpus.bin')").replace(
        "import Batch", "import data, Batch"
    )
    with pytest.raises(Unavailable, match=r"batch 0 of .* drawn: '/nowhere/corpus\.bin' is missing"):
        checked(tmp_path, source=source.replace("Ones()", loader))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--folder", "/x"], "--folder /x has no effect without Metrics"),
        (["--metrics", "stdout", "--metrics", "stdout"], "--metrics stdout stands there twice"),
        (["--location", "{root}/small.py"], "small.py is a file"),
        (["--slug", "s", "--location", "{root}/c", "--resume", "4"], "no checkpoint of step 4 at"),
    ],
)
def test_places_are_looked_at_as_far_as_that_touches_nothing(tmp_path: Path, flags: list[str], message: str):
    with pytest.raises(Rejected) as refused:
        checked(tmp_path, *(flag.format(root=tmp_path) for flag in flags))
    assert message in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["small.py"]


def test_the_telemetry_file_is_looked_at_as_a_run_would(tmp_path: Path):
    path = write_project(tmp_path, {"small.py": SMALL})
    given = parse_arguments(["check", str(path), "--device", "cpu"])
    environ = {"DIVERGENT_TELEMETRY_PATH": str(tmp_path / "none" / "telemetry.jsonl")}
    with pytest.raises(Rejected, match=r"DIVERGENT_TELEMETRY_PATH=.* is no directory: make it first"):
        check(read_request(given, environ, now=datetime.now(UTC)), environ)


def test_a_location_that_holds_another_run_is_refused_before_anybody_trains(tmp_path: Path):
    location = open_location(str(tmp_path / "kept"), {})
    location.claim(location.find(slug="mine"), session="0" * 32)
    flags = ["--location", str(tmp_path / "kept"), "--slug"]
    with pytest.raises(Rejected, match="holds the run of slug mine, not other"):
        checked(tmp_path, *flags, "other")
    assert checked(tmp_path, *flags, "mine").startswith("entry ")
