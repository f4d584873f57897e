from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runtime.experiment.model import Batch, Experiment, Stage
from runtime.training.determinism import configure, observe, reseed, restore, seeds_of

CPU = torch.device("cpu")


class Loader:
    def batch(self, index: int) -> Batch:
        raise NotImplementedError


def experiment(**changed: Any) -> Experiment:
    model = nn.Linear(1, 1)
    fields: dict[str, Any] = {
        "model": model,
        "loss": lambda _model, _data: torch.zeros(()),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "stages": [Stage("only", Loader())],
        "steps": 1,
    }
    return Experiment(**(fields | changed))


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002 - what files use


def test_the_same_place_in_a_run_draws_the_same_whatever_was_drawn_before():
    reseed(seeds_of(seed=1, rank=0, step=5, microbatch=2)[0])
    first = draws()
    draws()
    reseed(seeds_of(seed=1, rank=0, step=5, microbatch=2)[0])
    assert draws() == first


def test_every_part_of_the_place_changes_every_generator():
    places: list[dict[str, Any]] = [
        {"seed": 1, "rank": 0, "step": 0, "microbatch": 0},
        {"seed": 2, "rank": 0, "step": 0, "microbatch": 0},
        {"seed": 1, "rank": 1, "step": 0, "microbatch": 0},
        {"seed": 1, "rank": 0, "step": 1, "microbatch": 0},
        {"seed": 1, "rank": 0, "step": 0, "microbatch": 1},
        {"seed": 1, "rank": 0, "step": 0, "microbatch": 0, "purpose": "evaluation held-out"},
    ]
    seen = []
    for place in places:
        for seeds in seeds_of(**place):
            reseed(seeds)
            seen.append(draws())
    assert all(len({row[i] for row in seen}) == 2 * len(places) for i in range(3))


def test_a_seed_of_64_bits_is_taken():
    for seeds in seeds_of(seed=2**63 - 1, rank=0, step=2**40, microbatch=0):
        reseed(seeds)


@pytest.fixture
def _settings():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("_settings")
def test_what_can_be_set_is_restored_and_nothing_is_left_to_say():
    pinned = observe(experiment(), CPU)
    pinned |= {"threads": 3, "onednn": not pinned["onednn"], "matmul_precision": "medium"}
    try:
        assert restore(pinned, experiment(), CPU) == []
        assert torch.get_num_threads() == 3
        assert torch.backends.mkldnn.enabled == pinned["onednn"]
    finally:
        torch.backends.mkldnn.set_flags(not pinned["onednn"])


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"torch": "1.0"}, "torch was '1.0'"),
        ({"capability": "DEFAULT"}, "capability was 'DEFAULT'"),
        ({"processor": "abacus"}, "processor was 'abacus'"),
        ({"environment": {"MKL_CBWR": "COMPATIBLE"}}, "environment was"),
        ({"precision": "bf16"}, "precision was 'bf16' and is 'fp32'"),
        ({"compile": True}, "compile was True and is False"),
        ({"microbatches": 4}, "microbatches was 4 and is 1"),
        ({"optimizer": {"class": "SGD", "groups": [{"fused": True}]}}, "optimizer was"),
    ],
)
def test_what_cannot_be_restored_is_said(change: dict[str, Any], line: str):
    lines = restore(observe(experiment(), CPU) | change, experiment(), CPU)
    assert len(lines) == 1
    assert lines[0].startswith(line)


@pytest.mark.usefixtures("_settings")
def test_deterministic_kernels_are_on_whenever_something_compiles():
    configure(experiment(), CPU)
    assert not observe(experiment(), CPU)["deterministic"]
    configure(experiment(compile=True), CPU)
    assert observe(experiment(compile=True), CPU)["deterministic"]
