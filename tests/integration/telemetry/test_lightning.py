"""A real Lightning Trainer, a few steps, and its telemetry."""

from __future__ import annotations

import pytest
import torch

from runtime.telemetry.rules import Rules

# Lightning asks PyTorch for the leaves of a tree in a way that PyTorch has given up.
pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\):FutureWarning")


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "telemetry.jsonl"
    monkeypatch.setenv("DIVERGENT_TELEMETRY_PATH", str(path))
    return path


def test_what_a_module_logs_is_a_point_with_its_step(path, tmp_path):
    from lightning.pytorch import LightningModule, Trainer

    from runtime.telemetry.lightning import TelemetryLogger

    class Line(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _index):
            loss = (self.layer(batch) - 2 * batch).square().mean()
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch, _index):
            self.log("val_loss", self.layer(batch).square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    examples = list(torch.arange(8.0).reshape(8, 1) / 8)
    batches = torch.utils.data.DataLoader(examples, batch_size=2)  # type: ignore[var-annotated,arg-type]
    trainer = Trainer(
        logger=TelemetryLogger(),
        max_steps=4,
        log_every_n_steps=1,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Line(), batches, batches)
    rules = Rules()
    points = [rules.take(line) for line in path.read_bytes().splitlines()]
    assert [point["step"] for point in points if point and "train.loss" in point] == [0, 1, 2, 3]
    assert [point["step"] for point in points if point and "val_loss" in point] == [3]
    assert set(rules.keys) == {"step", "epoch", "train.loss", "val_loss"}
    assert not rules.dropped


def test_hyperparameters_are_no_telemetry(path):
    from runtime.telemetry.lightning import TelemetryLogger

    logger = TelemetryLogger()
    logger.log_hyperparams({"lr": 0.1})
    logger.log_metrics({"loss": 0.5})
    logger.finalize("success")
    assert path.read_text() == '{"loss":0.5}\n'
