"""A real Hugging Face Trainer, a few steps of a model that is made from a config, and its telemetry."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime.telemetry.rules import Rules
from tests.support.docs import ROOT, blocks


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self):
        return 8

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 8) % 16
        return {"input_ids": tokens, "labels": tokens}


def our_callback():
    from runtime.telemetry.hugging_face import TelemetryCallback

    return TelemetryCallback()


def callback_of_the_docs():
    """The few lines for a script that does without our package, as they stand in docs/div.md."""
    (block,) = (block for block in blocks(ROOT / "docs" / "div.md", "python") if "on_log" in block.text)
    names: dict[str, Any] = {}
    exec(block.text, names)
    return names["Telemetry"]()


@pytest.fixture
def callback():
    return our_callback


@pytest.fixture
def trainer(tmp_path, monkeypatch, callback):
    monkeypatch.setenv("DIVERGENT_TELEMETRY_PATH", str(tmp_path / "telemetry.jsonl"))
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    args = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=4,
        per_device_train_batch_size=2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    return Trainer(
        model=model,
        args=args,
        train_dataset=Numbers(),
        eval_dataset=Numbers(),
        callbacks=[callback()],
    )


@pytest.mark.parametrize("callback", [our_callback, callback_of_the_docs], ids=["ours", "of the docs"])
def test_every_dict_that_the_trainer_logs_is_a_point_with_its_step(trainer, tmp_path):
    trainer.train()
    rules = Rules()
    lines = (tmp_path / "telemetry.jsonl").read_bytes().splitlines()
    points = [rules.take(line) for line in lines]
    logged = [{"step": entry["step"], **entry} for entry in trainer.state.log_history]
    assert points == logged
    assert [point["step"] for point in points if point and "loss" in point] == [2, 4]
    assert [point["step"] for point in points if point and "eval_loss" in point] == [4]
    assert not rules.dropped


def test_other_processes_than_the_first_write_nothing(trainer, tmp_path):
    trainer.state.is_world_process_zero = False
    trainer.callback_handler.on_log(trainer.args, trainer.state, trainer.control, {"loss": 1.0})
    assert not (tmp_path / "telemetry.jsonl").exists()
