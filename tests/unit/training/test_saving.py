from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from runtime.checkpoints.memory import MemoryStore
from runtime.events.stream import EventStream
from runtime.events.targets import MemoryTarget
from runtime.experiment.model import Batch, Experiment, Stage
from runtime.training.interrupts import Interrupts
from runtime.training.position import Position
from runtime.training.precision import Precision
from runtime.training.saving import RunCheckpoints
from runtime.training.state import TrainingState
from tests.support.checkpoints import begin, saver_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class Loader:
    def batch(self, index: int) -> Batch:
        return Batch(torch.ones(2, 3) * index, 2)


class Held(MemoryStore):
    """Keeps nothing until `gate` is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        assert self.gate.wait(30)
        super().put(key, data)


class Counting(TrainingState):
    captured = 0

    def capture(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        self.captured += 1
        return super().capture()


class Parts:
    def __init__(self) -> None:
        model = nn.Linear(3, 1)
        experiment = Experiment(
            model=model,
            loss=lambda model, data: model(data).mean(),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            stages=[Stage("only", Loader())],
            steps=8,
        )
        self.store = Held()
        self.interrupts = Interrupts(notice_s=20)
        self.stream = EventStream([MemoryTarget()])
        self.state = Counting(experiment, Precision("fp32", torch.device("cpu")))
        attempt = begin_now(self.store)
        self.checkpoints = RunCheckpoints(
            experiment,
            attempt=attempt,
            saver=saver_of(attempt),
            state=self.state,
            stream=self.stream,
            interrupts=self.interrupts,
            about={},
        )


def begin_now(store: Held) -> Any:
    """Claim without being held: the probe for conditional writes is a put."""
    store.gate.set()
    attempt = begin(store)
    store.gate.clear()
    return attempt


@pytest.fixture
def parts() -> Iterator[Parts]:
    made = Parts()
    yield made
    made.store.gate.set()
    made.checkpoints.settle()
    made.checkpoints.close()
    made.stream.close(timeout_s=60)


def test_while_a_save_is_on_its_way_the_next_one_that_is_due_costs_nothing(parts: Parts):
    assert parts.checkpoints.offer(Position(step=2))
    for step in (3, 4, 5):
        assert not parts.checkpoints.offer(Position(step=step))
    assert parts.state.captured == 1


def test_work_is_lost_until_the_step_that_is_done_is_published(parts: Parts):
    seen = []
    parts.checkpoints.moved_on(2)
    assert parts.checkpoints.offer(Position(step=2))
    seen.append(parts.interrupts.loses_work)
    parts.store.gate.set()
    parts.checkpoints.settle()
    seen.append(parts.interrupts.loses_work)
    parts.checkpoints.moved_on(3)
    seen.append(parts.interrupts.loses_work)
    assert seen == [True, False, True]


def test_a_checkpoint_that_is_older_than_the_step_that_is_done_saves_it_not(parts: Parts):
    assert parts.checkpoints.offer(Position(step=2))
    parts.checkpoints.moved_on(3)
    parts.store.gate.set()
    parts.checkpoints.settle()
    assert parts.interrupts.loses_work
