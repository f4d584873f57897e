"""What holds on a CPU holds on a GPU: a killed run ends with the same bits, and metrics wait for nothing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from runtime.experiment.model import Batch, Experiment, Stage
from runtime.training.determinism import configure, observe
from runtime.training.metrics import Collector, Pending, collecting, metric
from runtime.training.position import Position
from runtime.training.precision import Precision
from runtime.training.update import Updater
from tests.support.forge import CallPlan
from tests.support.runs import SmallRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.forge import Forge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BACKWARD = "runtime.training.precision:Precision.backward"
UPDATE = "runtime.training.update:Updater.__call__"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_run_that_is_killed_and_asked_to_stop_ends_with_the_same_bits(
    forge: Forge, tmp_path: Path, precision: str
):
    flags = ("--device", "cuda", "--knob", f"precision={precision}")
    unbroken = SmallRun(forge, tmp_path / "unbroken", flags=flags)
    unbroken.go()
    run = SmallRun(forge, tmp_path / "killed", flags=flags)
    run.go(calls=CallPlan(call=BACKWARD, at=15), code=-signal.SIGKILL)
    resumed = run.go(calls=CallPlan(call=UPDATE, at=2, signum=signal.SIGTERM), code=143)
    assert "no equality" not in resumed.err.read_text()
    run.go()
    run.outcome().assert_equals(unbroken.outcome())


@pytest.fixture
def _no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("_no_waiting")
def test_metric_takes_a_tensor_of_the_device_as_it_is_and_waits_for_nothing():
    collector = Collector({"split": "train", "stage": "only"})
    value = torch.zeros((), device="cuda")
    with collecting(collector):
        for weight in range(1, 101):
            collector.weight = weight
            value += 1
            metric("counted", value)
            metric("half", value.half() / 2)
            metric("plain", 2.0)
    pending = Pending(collector.take())
    torch.cuda.set_sync_debug_mode("default")
    mean = sum(n * n for n in range(1, 101)) / sum(range(1, 101))
    found = {name: number for name, number, _ in pending.points()}
    assert found == {"counted": pytest.approx(mean), "half": pytest.approx(mean / 2), "plain": 2.0}


class Ones:
    def batch(self, index: int) -> Batch:
        return Batch({"x": torch.full((8, 4), float(index)), "pair": (torch.ones(1), [1, 2])}, 8, 8)


def loss(model: nn.Module, data: Any) -> torch.Tensor:
    value: torch.Tensor = model(data["x"]).square().mean() + data["pair"][0].sum()
    metric("value", value)
    return value


def test_an_update_waits_for_the_device_nowhere():
    device = torch.device("cuda", 0)
    model = nn.Linear(4, 4).to(device)
    experiment = Experiment(
        model=model,
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        learning_rate=lambda step: 1e-3 / (step + 1),
        stages=[Stage("only", Ones())],
        steps=10,
        microbatches=2,
        clip_norm=1.0,
    )
    configure(experiment, device)
    update = Updater(experiment, model=model, device=device, precision=Precision("bf16", device))
    update(Position()).points()  # the first one loads kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = update(Position(step=1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    names = [name for name, _, _ in pending.points()]
    assert names == ["train/loss", "value", "train/grad_norm", "train/lr", "rate/tokens"]
    assert observe(experiment, device)["deterministic"]
