"""A Hugging Face Trainer in a shipped directory, killed twice with SIGKILL and once with its worker."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.support.metrics_server import running_server
from tests.support.prefect_stack import prefect_stack
from tests.support.shipped_runs import ShippedRun, ShippedRuns
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.chaos, pytest.mark.stack, pytest.mark.timeout(600)]

STEPS, EVERY = 200, 5

TRAIN = f"""
    import json, os
    from pathlib import Path

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    from runtime.telemetry.hugging_face import TelemetryCallback

    checkpoints = Path(os.environ["SLUGLINE_CHECKPOINTS"])


    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            ids = (torch.arange(8) + index) % 16
            return {{"input_ids": ids, "labels": ids}}


    class Whole(TrainerCallback):
        "Marks the checkpoints that are whole: a kill may come in the middle of one."

        def on_save(self, args, state, control, **kwargs):
            (checkpoints / f"checkpoint-{{state.global_step}}/whole").touch()


    torch.manual_seed(0)
    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=2)),
        args=TrainingArguments(
            output_dir=str(checkpoints), max_steps={STEPS}, per_device_train_batch_size=2, logging_steps=1,
            save_steps={EVERY}, report_to=[], use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
        ),
        train_dataset=Numbers(),
        callbacks=[TelemetryCallback(), Whole()],
    )
    whole = sorted(checkpoints.glob("*/whole"), key=lambda path: int(path.parent.name.split("-")[1]))
    trainer.train(resume_from_checkpoint=str(whole[-1].parent) if whole else None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    Path(os.environ["DIVERGENT_RESULT_PATH"]).write_text(json.dumps({{"loss": losses[-1]}}))
"""


@pytest.fixture
def runs(tmp_path) -> Iterator[ShippedRuns]:
    (tmp_path / "shipped").mkdir()
    with (
        running_server(tmp_path / "data") as metrics,
        prefect_stack(O41_METRICS_HOST=metrics.url, O41_METRICS_API_KEY=metrics.key) as stack,
        temporary_settings({PREFECT_API_URL: stack.api}),
    ):
        stack.deploy()
        stack.start_rescue("--poll-s", "1")
        made = ShippedRuns(stack, metrics, tmp_path / "shipped")
        made.write(train=TRAIN)
        yield made


def once_kept(run: ShippedRun, *, after: int) -> int:
    """The command's process, once another checkpoint is whole."""
    checkpoints = run.location / "checkpoints"
    wait_until(lambda: len(list(checkpoints.glob("checkpoint-*/whole"))) > after, within_s=120, what=run.told)
    return run.process(from_step=0)


def test_a_trainer_that_is_killed_three_times_is_one_run(runs):
    worker = runs.stack.start_worker("first")
    checks = '[[check]]\nkey = "loss"\nop = "<"\nthreshold = 2.7\n'
    run = runs.start("trainer", "python", "train.py", checks=checks)
    os.kill(once_kept(run, after=2), signal.SIGKILL)
    os.kill(once_kept(run, after=6), signal.SIGKILL)
    once_kept(run, after=12)
    for pid in (worker.pid, run.flow_process()):
        os.kill(pid, signal.SIGKILL)
    worker.wait()
    runs.stack.start_worker("second")
    run.until("Completed", "Failed", "Cancelled")
    page, points = run.page(), run.points()
    assert (page["state"], page["attempt"], page["exit_code"]) == ("done", 4, 0), run.told()
    assert [point["seq"] for point in points] == list(range(1, len(points) + 1))
    written = [json.loads(line) for line in (run.folder / "telemetry.jsonl").read_text().splitlines()]
    assert [point["data"] for point in points] == written
    assert {point["data"]["step"] for point in points if "loss" in point["data"]} == set(range(1, STEPS + 1))
    assert [verdict["passed"] for verdict in page["verdicts"]] == [True]
