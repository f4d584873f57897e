"""The parameters of a run: refused in one line before anything starts, and unchanged by Prefect."""

from __future__ import annotations

import json

import pytest

from flows.parameters import TrainParameters, experiment_path, file_name, from_json
from runtime.errors import Rejected, Unavailable


def parameters(**changes) -> TrainParameters:
    return TrainParameters(**{"experiment": "/srv/exp.py", "slug": "a", **changes})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"experiment": ""}, "experiment must name"),
        ({"experiment": "exp.py"}, "absolute path, got 'exp.py'"),
        (
            {"experiment": "exp.py", "tree": "abc"},
            "a directory's digest, 64 hex digits, got 'abc'",
        ),
        ({"tree": "0" * 64}, "a Python file inside the shipped directory, got '/srv/exp.py'"),
        ({"tree": "0" * 64, "experiment": "../exp.py"}, "inside the shipped directory, got '../exp.py'"),
        ({"tree": "0" * 64, "experiment": "pkg.module"}, "inside the shipped directory, got 'pkg.module'"),
        ({"trees": "here"}, "location must be s3://bucket/prefix or an absolute path, got 'here'"),
        ({"slug": ""}, "a slug must be 1 to 200 UTF-16 units long, got 0"),
        ({"slug": "x" * 201}, "got 201"),
        ({"slug": "\U0001f600" * 101}, "got 202"),
        ({"slug": "\ud800"}, "lone surrogate"),
        ({"location": "relative"}, "location must be s3://bucket/prefix or an absolute path, got 'relative'"),
        ({"location": "s3://"}, "location must be"),
        ({"location": "s3://Bad_Bucket/a"}, "location must be"),
        ({"targets": ("syvian",)}, "targets takes jsonl:PATH, stdout or syvain, got 'syvian'"),
        ({"device": "tpu"}, "device must be cpu or cuda, got 'tpu'"),
        ({"knobs": {"not a name": 1}}, "a knob's name must be"),
        ({"knobs": {"lr": [1]}}, "knob lr must be"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": True}, "steps must be"),
        ({"steps": 1.5}, "steps must be"),
        ({"eval_every": -1}, "eval_every must be"),
        ({"steps": 2**53}, "steps must be a whole number of at most 9,007,199,254,740,991, got 9,007,"),
        ({"gpus": -1}, "gpus must be"),
        ({"interruptions": -1}, "interruptions must be"),
        ({"failures": -1}, "failures must be"),
        ({"no_progress": 0}, "no_progress must be"),
        ({"notice_s": 0}, "notice_s must be above 0"),
        ({"notice_s": 26}, "Prefect kills what is left after 30 seconds"),
        ({"notice_s": float("nan")}, "notice_s must be"),
        ({"device": "cpu", "gpus": 1}, "gpus must be 0 with device cpu, got 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_value_is_refused_in_one_line(change, told):
    with pytest.raises(Rejected) as caught:
        parameters(**change)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_or_a_missing_field_is_refused():
    with pytest.raises(Rejected, match="unknown parameter 'stepz'"):
        from_json({"experiment": "m", "stepz": 1})
    with pytest.raises(Rejected, match="experiment is missing"):
        from_json({"slug": "a"})


def test_parameters_survive_being_kept_as_json():
    full = parameters(
        experiment="exp.py",
        tree="0" * 64,
        trees="s3://bucket/.trees",
        folder="lm",
        variant="big",
        knobs={"lr": 0.1, "name": "x", "on": True},
        precision="bf16",
        steps=3,
        eval_every=1,
        device="cuda",
        gpus=2,
        location="s3://bucket/p",
        targets=("syvain", "jsonl:/x"),
        interruptions=1,
        failures=0,
        no_progress=9,
        notice_s=5.0,
        work_dir="/w",
    )
    assert from_json(json.loads(json.dumps(full.to_json()))) == full


def test_only_what_is_set_is_kept():
    assert parameters().to_json() == {"experiment": "/srv/exp.py", "slug": "a"}


def test_different_slugs_have_different_file_names_and_none_leaves_its_folder():
    slugs = ["a", "A", "a/b", "a%2Fb", "a b", ".", "..", "...", "ä", "a\nb", "a:b", "../x"]
    names = [file_name(slug) for slug in slugs]
    assert len(set(names)) == len(slugs)
    assert all("/" not in name and name.strip(".") for name in names)


def test_the_longest_slugs_make_file_names_that_a_file_system_takes(tmp_path):
    slugs = ["ü" * 200, "ü" * 199 + "v", "😀" * 100, "a" * 200, "/" * 200]
    names = [file_name(slug) for slug in slugs]
    for name in names:
        (tmp_path / name).mkdir()
    assert len(set(names)) == len(slugs)
    assert file_name("a" * 200) == "a" * 200


def test_an_experiment_is_a_file_or_a_module_of_this_host(tmp_path):
    file = tmp_path / "exp.py"
    with pytest.raises(Unavailable, match="is not on this host"):
        experiment_path(str(file))
    file.write_text("")
    assert experiment_path(str(file)) == file
    assert experiment_path("flows.experiments.digits").name == "digits.py"
    for module in ("no.such.module", "not_there_at_all", "..bad"):
        with pytest.raises(Rejected, match="no module"):
            experiment_path(module)
