import os

import pytest

from runtime.errors import Rejected
from runtime.events.kinds import Open
from runtime.events.lines import JsonlTarget, PipeTarget
from runtime.events.targets import parse_target, parse_targets

SESSION = "0" * 32
KEYS = {"O41_METRICS_API_KEY": "ak", "O41_METRICS_HOST": "http://127.0.0.1:9"}


def parse(spec, env=None):
    return parse_target(spec, env or {}, session=SESSION)


def test_the_targets_stand_in_the_order_they_were_asked_for(tmp_path):
    specs = [f"jsonl:{tmp_path}/b.jsonl", "syvain", "stdout", f"jsonl:{tmp_path}/a.jsonl"]
    assert [target.name for target in parse_targets(specs, KEYS, session=SESSION)] == specs


@pytest.mark.parametrize(
    "spec", ["", "jsonl", "jsonl:", "Stdout", "stdout:", "syvain:x", "file.jsonl", "json:x"]
)
def test_an_unknown_target_is_refused_with_what_is_accepted(spec):
    with pytest.raises(Rejected, match=r"unknown target .*: --metrics takes jsonl:PATH, stdout or syvain"):
        parse(spec)


@pytest.mark.parametrize("again", ["jsonl:{}/a.jsonl", "jsonl:{}/x/../a.jsonl", "jsonl:{}/link.jsonl"])
def test_one_file_twice_is_refused_however_it_is_spelt(tmp_path, again):
    (tmp_path / "x").mkdir()
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    with pytest.raises(Rejected, match="stands there twice"):
        parse_targets([f"jsonl:{tmp_path}/a.jsonl", again.format(tmp_path)], {}, session=SESSION)


@pytest.mark.parametrize("spec", ["stdout", "syvain"])
def test_a_target_twice_is_refused(spec):
    with pytest.raises(Rejected, match=f"--metrics {spec} stands there twice"):
        parse_targets([spec, spec], KEYS, session=SESSION)


def test_a_folder_without_metrics_is_refused():
    with pytest.raises(Rejected, match="--folder /lm has no effect without Metrics: add --metrics syvain"):
        parse_targets(["stdout"], {}, session=SESSION, folder="/lm")


def test_a_relative_path_is_fixed_when_it_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse("jsonl:run.jsonl").name == f"jsonl:{tmp_path}/run.jsonl"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert parse("jsonl:~/run.jsonl").name == f"jsonl:{tmp_path}/home/run.jsonl"


def test_a_path_that_cannot_be_reached_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Rejected, match=r"cannot be reached: .*Not a directory"):
        parse(f"jsonl:{tmp_path}/file/run.jsonl")
    with pytest.raises(Rejected, match="null byte"):
        parse("jsonl:a\0b")


def test_a_named_pipe_without_a_reader_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Rejected, match="cannot be written: No such device or address"):
        parse(f"jsonl:{tmp_path}/pipe")


def test_a_named_pipe_is_written_as_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    target = parse(f"jsonl:{tmp_path}/pipe")
    assert isinstance(target, PipeTarget)
    event = Open(1, "r", "d", {})
    target.write([event], [event.encode()])
    assert os.read(reader, 1000) == event.encode()
    target.close(5)
    os.close(reader)


def test_a_pipe_is_found_through_links_that_name_none():
    reader, writer = os.pipe()
    target = parse(f"jsonl:/dev/fd/{writer}")
    os.close(writer)
    target.write([Open(1, "r", "d", {})], [b"line\n"])
    target.close(5)
    assert os.read(reader, 1000) == b"line\n"
    os.close(reader)


def test_standard_output_stays_open_when_its_target_closes():
    target = parse("stdout")
    target.check()
    target.close(1)
    os.fstat(1)
    assert isinstance(parse("jsonl:/nowhere/run.jsonl"), JsonlTarget)
