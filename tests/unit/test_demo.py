"""flows.demo: it fails when one bit differs, whatever else is equal."""

import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch

from flows import demo
from flows.demo import DemoError


@dataclass
class Checkpoint:
    """As much of a checkpoint as is compared."""

    step: int = demo.STEPS
    tensors: dict[str, torch.Tensor] = field(default_factory=lambda: {"a": torch.tensor([1.0, float("nan")])})


class Watch:
    """A run that measured these values."""

    def __init__(self, loss: float = 1.0) -> None:
        self._loss = loss

    def metrics(self):
        return {("train/loss", 0, "{}"): self._loss}


def compare(one: Checkpoint, other: Checkpoint, first: Watch, second: Watch) -> str:
    return demo._compare(one, other, first, second)  # type: ignore[arg-type]  # stand-ins


def test_a_data_directory_that_cannot_be_used_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLUGLINE_DATA", str(tmp_path / "file"))
    assert demo.main() == 2
    assert capsys.readouterr().out.startswith("demo: the data directory is not a directory: ")


def test_a_demo_that_is_killed_leaves_no_trainer():
    """The unbroken run is no process of the stack: `down` did not find it, and it trained on."""
    trainer = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    code = (
        "import subprocess, sys; from flows.demo import _that_ends_with_us\n"
        "subprocess.run(_that_ends_with_us(sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *trainer], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        parent.kill()
        # Ends once nobody holds the pipe: the trainer is gone.
        assert parent.communicate(timeout=60)[0] == ""


def test_equal_runs_are_said_to_be_equal():
    said = compare(Checkpoint(), Checkpoint(), Watch(), Watch())
    assert said.startswith("1 tensors of weights and optimiser state")
    assert said.endswith("1 metric values are equal, bit for bit")


@pytest.mark.parametrize(
    "other",
    [
        Checkpoint(tensors={"a": torch.tensor([1.0000001, float("nan")])}),
        Checkpoint(tensors={"a": torch.tensor([1.0, 0.0])}),
        Checkpoint(tensors={"a": torch.tensor([1.0, float("nan")], dtype=torch.float64)}),
        Checkpoint(tensors={"b": torch.tensor([1.0, float("nan")])}),
        Checkpoint(tensors={}),
        Checkpoint(step=demo.STEPS - 1),
    ],
)
def test_any_difference_of_the_checkpoints_fails(other):
    with pytest.raises(DemoError):
        compare(Checkpoint(), other, Watch(), Watch())


def test_minus_zero_is_not_zero():
    zero, minus = ({"a": torch.tensor([value])} for value in (0.0, -0.0))
    with pytest.raises(DemoError, match="tensors differ: a"):
        compare(Checkpoint(tensors=zero), Checkpoint(tensors=minus), Watch(), Watch())


def test_another_measured_value_fails():
    with pytest.raises(DemoError, match="did not measure the same"):
        compare(Checkpoint(), Checkpoint(), Watch(), Watch(loss=1.5))
