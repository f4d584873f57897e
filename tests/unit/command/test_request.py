from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runtime.cli.arguments import parse_arguments
from runtime.cli.request import RunRequest, read_request
from runtime.errors import Rejected

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def request(*flags: str, file: str = "lm.py", **environ: str) -> RunRequest:
    return read_request(parse_arguments(["run", file, *flags]), environ, now=NOW)


def test_unset_flags_mean_the_defaults():
    made = request()
    assert made == RunRequest(
        file=Path("lm.py"),
        variant=None,
        knobs={},
        steps=None,
        eval_every=None,
        slug="lm-20260102T030405.678Z",
        slug_given=False,
        folder=None,
        location=None,
        metrics=(),
        device=None,
        devices=(),
        resume="auto",
        notice_s=20.0,
        json=False,
    )
    with pytest.raises(FrozenInstanceError):
        made.slug = "x"  # type: ignore[misc] # that is the test


def test_every_flag_arrives():
    made = request(
        "--variant=tiny", "--knob", "rate=1=2", "--knob=name=", "--steps=30", "--eval-every", "5",
        "--diagnostics", "off", "--slug", "my run/ü", "--folder", "/lab", "--location", "s3://bucket/a/b",
        "--metrics", "jsonl:out.jsonl", "--metrics", "syvain", "--device", "cuda", "--devices", "1",
        "--resume", "12", "--notice", "2.5", "--json",
    )  # fmt: skip
    assert made == RunRequest(
        file=Path("lm.py"),
        variant="tiny",
        knobs={"rate": "1=2", "name": ""},
        steps=30,
        eval_every=5,
        slug="my run/ü",
        slug_given=True,
        folder="/lab",
        location="s3://bucket/a/b",
        metrics=("jsonl:out.jsonl", "syvain"),
        device="cuda",
        devices=(1,),
        resume=12,
        notice_s=2.5,
        json=True,
    )


def test_targets_come_from_the_environment_only_where_no_flag_names_one():
    variable = {"SEXPGPU_METRICS": "syvain  jsonl:/tmp/x"}
    assert request(**variable).metrics == ("syvain", "jsonl:/tmp/x")
    assert request("--metrics", "stdout", **variable).metrics == ("stdout",)
    assert request(SEXPGPU_METRICS="").metrics == ()
    with pytest.raises(Rejected, match="SEXPGPU_METRICS takes jsonl:PATH, stdout or syvain, got 'csv:x'"):
        request(SEXPGPU_METRICS="csv:x")


def test_a_long_name_of_a_file_still_makes_a_slug():
    assert len(request(file="x" * 250 + ".py").slug) <= 200


BAD = [
    (["--steps", "0"], "--steps must be an integer from 1 to 9007199254740990, got '0'"),
    (["--steps", "1e3"], "--steps must be an integer from 1"),
    (["--steps", "-5"], "--steps must be an integer from 1"),
    (["--steps", "9" * 30], "--steps must be an integer from 1"),
    (["--steps", "\u0663"], "--steps must be an integer from 1"),
    (["--eval-every", "x"], "--eval-every must be an integer from 1"),
    (["--diagnostics", "full"], "--diagnostics must be off, got 'full': others are not taken yet"),
    (["--variant", ""], "--variant must be text, not empty and without NUL, got ''"),
    (["--knob", "rate"], "--knob takes name=value, got 'rate'"),
    (["--knob", "=3"], "--knob takes name=value, got '=3'"),
    (["--knob", "a=1", "--knob", "a=2"], "the knob a is given twice, as '1' and '2'"),
    (
        ["--knob", "steps=1", "--steps", "2"],
        "the knob steps is given twice, by --steps 2 and by --knob steps=1",
    ),
    (
        ["--knob", "eval_every=1", "--eval-every", "1"],
        "the knob eval_every is given twice, by --eval-every 1",
    ),
    (["--slug", "x" * 201], "--slug: a slug must be 1 to 200 UTF-16 units long, got 201"),
    (["--slug", "\U0001f600" * 101], "--slug: a slug must be 1 to 200 UTF-16 units long, got 202"),
    (["--slug", " "], "--slug must be text, not empty and without NUL, got ' '"),
    (["--slug", "\udc80"], "--slug must be valid Unicode"),
    (["--folder", ""], "--folder must be text, not empty and without NUL"),
    (["--location", "gs://bucket/x"], "--location must be a path or s3://bucket/prefix, got 'gs://bucket/x'"),
    (["--location", "s3://"], "--location must be a path or s3://bucket/prefix, got 's3://'"),
    (["--location", "s3://UPPER/x"], "--location must be a path or s3://bucket/prefix"),
    (["--location", "s3://bucket/a//b"], "--location must be a path or s3://bucket/prefix"),
    (["--location", "a\0b"], "--location must be text, not empty and without NUL"),
    (["--metrics", "jsonl"], "--metrics takes jsonl:PATH, stdout or syvain, got 'jsonl'"),
    (["--metrics", "jsonl:"], "--metrics takes jsonl:PATH, stdout or syvain, got 'jsonl:'"),
    (["--metrics", "stderr"], "--metrics takes jsonl:PATH, stdout or syvain, got 'stderr'"),
    (["--device", "tpu"], "--device must be cpu or cuda, got 'tpu'"),
    (["--devices", "0,1"], "--devices takes one device, got 0,1: runs on several are not taken yet"),
    (["--devices", "one"], "--devices must be ordinals of CUDA devices such as 0, got 'one'"),
    (["--device", "cpu", "--devices", "0"], "--devices names CUDA devices, got '0' with --device cpu"),
    (["--resume", "last"], "--resume must be auto, never or the step of a checkpoint, got 'last'"),
    (["--resume", "-1"], "--resume must be auto, never or the step of a checkpoint, got '-1'"),
    (["--resume", "3"], "--resume 3 needs --slug and --location, got no --slug"),
    (["--resume", "3", "--slug", "s"], "--resume 3 needs --slug and --location, got no --location"),
    (["--notice", "0"], "--notice must be a number of seconds above 0 and at most 86,400, got '0'"),
    (["--notice", "inf"], "--notice must be a number of seconds above 0 and at most 86,400, got 'inf'"),
    (["--notice", "86401"], "--notice must be a number of seconds above 0 and at most 86,400, got '86401'"),
    (["--notice", "soon"], "--notice must be a number of seconds above 0 and at most 86,400, got 'soon'"),
]


@pytest.mark.parametrize(("flags", "message"), BAD)
def test_a_bad_value_is_refused_with_what_is_accepted(flags: list[str], message: str):
    with pytest.raises(Rejected) as refused:
        request(*flags)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_file_name_is_refused():
    with pytest.raises(Rejected, match="FILE must be text, not empty and without NUL"):
        request(file="")


INSIDE = {
    "SLUGLINE_SLUG": "warm-up",
    "SLUGLINE_CHECKPOINTS": "s3://bucket/runs/warm-up/checkpoints",
    "DIVERGENT_RUN": "warm-up",
    "DIVERGENT_TELEMETRY_PATH": "/srv/warm-up/telemetry.jsonl",
    "O41_METRICS_API_KEY": "key",
}


def test_inside_div_run_no_flag_is_needed():
    made = request(**INSIDE)
    assert (made.slug, made.slug_given, made.location) == ("warm-up", True, INSIDE["SLUGLINE_CHECKPOINTS"])
    assert made.metrics == ("syvain",)
    assert made.telemetry == Path("/srv/warm-up/telemetry.jsonl")


def test_flags_win_over_what_div_run_says():
    made = request("--slug", "mine", "--location", "/tmp/ckpt", "--metrics", "stdout", **INSIDE)
    assert (made.slug, made.location, made.metrics) == ("mine", "/tmp/ckpt", ("stdout",))
    assert made.telemetry is not None


def test_targets_of_the_environment_win_over_the_one_inside_div_run():
    assert request(**INSIDE, SEXPGPU_METRICS="stdout").metrics == ("stdout",)


def test_inside_div_run_without_metrics_settings_events_go_nowhere_else():
    assert request(**{**INSIDE, "O41_METRICS_API_KEY": ""}).metrics == ()


def test_a_key_of_metrics_alone_sends_nothing():
    assert request(O41_METRICS_API_KEY="key").metrics == ()


def test_empty_variables_say_nothing():
    made = request(**dict.fromkeys(INSIDE, ""))
    assert (made.slug_given, made.location, made.metrics, made.telemetry) == (False, None, (), None)


@pytest.mark.parametrize(
    ("variable", "value"), [("SLUGLINE_SLUG", "x" * 201), ("SLUGLINE_CHECKPOINTS", "gs://bucket/x")]
)
def test_a_bad_variable_is_refused_by_its_name(variable, value):
    with pytest.raises(Rejected, match=variable):
        request(**{**INSIDE, variable: value})
