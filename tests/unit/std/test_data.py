from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from runtime.errors import Rejected
from runtime.std.data import InOrder, Shuffled, Tensors


class Noisy:
    """Examples that draw from every global generator, as augmentation does."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        noise = torch.rand(2) + random.random() + float(np.random.random())  # noqa: NPY002 - the shared one
        return index, noise


def test_every_epoch_is_a_permutation_however_often_the_run_is_resumed():
    """A ledger of example ids over resumes at steps 0, 5 and 6 of one epoch: each id once an epoch."""
    ledger: list[int] = []
    for first, last in [(0, 5), (5, 6), (6, 23)]:
        loader = Shuffled(
            Tensors(torch.arange(23)), batch_size=10, seed=3
        )  # a new process makes a new loader
        for index in range(first, last):
            ids = loader.ids(index)
            assert loader.batch(index).data[0].tolist() == ids
            ledger += ids
    epochs = [ledger[start : start + 23] for start in range(0, 230, 23)]
    assert all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 10


def test_the_order_depends_on_the_seed_and_on_nothing_read_before():
    dataset = Tensors(torch.arange(50))
    loader, other = Shuffled(dataset, batch_size=8, seed=1), Shuffled(dataset, batch_size=8, seed=2)
    backwards = [loader.ids(index) for index in reversed(range(20))][::-1]
    assert backwards == [Shuffled(dataset, batch_size=8, seed=1).ids(index) for index in range(20)]
    assert [loader.ids(index) for index in range(6)] != [other.ids(index) for index in range(6)]


def test_a_batch_may_be_larger_than_the_dataset():
    ids = Shuffled(Tensors(torch.arange(3)), batch_size=7).ids(0)
    assert sorted(ids[:3]) == sorted(ids[3:6]) == [0, 1, 2]


def test_random_augmentation_is_a_function_of_the_batch_and_disturbs_nothing():
    loader = Shuffled(Noisy(), batch_size=4, seed=5)
    before = torch.get_rng_state(), random.getstate()
    first = loader.batch(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    torch.rand(7)
    second = loader.batch(3)
    assert torch.equal(first.data[1], second.data[1])
    assert not torch.equal(first.data[1], loader.batch(4).data[1])
    assert first.num_examples == 4
    assert first.num_tokens is None


def test_in_order_shows_every_example_once_a_round():
    loader = InOrder(Tensors(torch.arange(10)), batch_size=4)
    assert len(loader) == 3
    batches = [loader.batch(index) for index in range(4)]
    assert [batch.data[0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    assert [batch.num_examples for batch in batches] == [4, 4, 2, 4]


def test_examples_are_collated_as_the_caller_says():
    loader = InOrder(Noisy(), batch_size=3, collate=lambda examples: [number for number, _ in examples])
    assert loader.batch(1).data == [3, 4, 5]
    stacked = InOrder(Noisy(), batch_size=3).batch(1).data
    assert stacked[0].tolist() == [3, 4, 5]
    assert stacked[1].shape == (3, 2)


def test_a_row_of_tensors_is_an_example():
    assert [int(part) for part in Tensors(torch.arange(4), torch.arange(4) * 10)[2]] == [2, 20]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tensors(torch.zeros(2), torch.zeros(3)), r"one length, got the lengths \[2, 3\]"),
        (lambda: Shuffled(Tensors(torch.zeros(0)), batch_size=1), "at least one example, got none"),
        (lambda: InOrder(Tensors(torch.zeros(3)), batch_size=0), "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_sizes_are_refused(make: Any, message: str):
    with pytest.raises(Rejected, match=message):
        make()
