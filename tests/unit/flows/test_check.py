"""What is refused before it is scheduled, and what only a worker can tell."""

import os
from pathlib import Path

import pytest

from flows.check import check_experiment, check_store
from flows.parameters import TrainParameters
from runtime.errors import Rejected
from tests.support.docs import ROOT
from tests.support.ports import free_port

DIGITS = str(ROOT / "flows/experiments/digits.py")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"variant": "none"}, "unknown variant 'none'; accepted: tiny"),
        ({"knobs": {"widht": "3"}}, "unknown knob 'widht'"),
        ({"precision": "fp16"}, "unknown knob 'precision'"),
    ],
)
def test_what_the_file_does_not_take_is_refused_in_its_own_words(values, says):
    with pytest.raises(Rejected, match=says) as refused:
        check_experiment(TrainParameters(experiment=DIGITS, **values), os.environ)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_python_is_refused_with_its_line(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("def experiment(\n")
    with pytest.raises(Rejected, match=r"broken\.py:1: SyntaxError"):
        check_experiment(TrainParameters(experiment=str(file)), os.environ)


def test_a_module_is_looked_at_like_a_file():
    with pytest.raises(Rejected, match="unknown variant 'none'"):
        check_experiment(TrainParameters(experiment="flows.experiments.digits", variant="none"), os.environ)


def test_a_run_for_a_gpu_is_scheduled_from_a_host_without_one_and_touches_no_target(tmp_path):
    events = tmp_path / "events.jsonl"
    parameters = TrainParameters(experiment=DIGITS, device="cuda", gpus=1, location=str(tmp_path / "at"))
    of_this_shell = {"SEXPGPU_METRICS": f"jsonl:{events}", "DIVERGENT_TELEMETRY_PATH": "/none/telemetry"}
    check_experiment(parameters, {**os.environ, **of_this_shell})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("experiment", ["/nowhere/file.py", "no_such_module.here"])
def test_what_only_the_workers_have_is_left_to_them(experiment):
    check_experiment(TrainParameters(experiment=experiment), os.environ)


def test_a_file_that_reads_what_is_missing_here_is_left_to_the_workers(tmp_path):
    file = tmp_path / "reads.py"
    file.write_text(f"{Path(DIGITS).read_text()}\nopen('/nowhere/corpus.txt')\n")
    check_experiment(TrainParameters(experiment=str(file)), os.environ)


def test_a_bucket_that_is_not_there_or_not_ours_is_refused_and_one_that_is_there_is_not(bucket):
    check_store(f"{bucket.url}/runs/a", bucket.env)
    with pytest.raises(Rejected, match="has no bucket no-such-bucket"):
        check_store("s3://no-such-bucket/a", bucket.env)
    with pytest.raises(Rejected, match="refuses access"):
        check_store(f"{bucket.url}/a", {**bucket.env, "AWS_SECRET_ACCESS_KEY": "wrong"})


def test_a_store_that_cannot_be_reached_from_here_may_be_from_a_worker():
    env = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    check_store("s3://bucket/a", env)
    check_store("s3://bucket/a", {"AWS_ENDPOINT_URL": env["AWS_ENDPOINT_URL"]})
    check_store("/a/folder", {})
    check_store(None, {})
