"""Random numbers that are a function of a key, and nothing else's."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["random_integers", "seeded"]


def random_integers(count: int, *key: int) -> np.ndarray:
    """Return `count` random 64-bit integers (uint64), a function of `key` alone.

    Source: numpy promises that Philox's raw numbers and SeedSequence never change between versions, which
    it does not of its `permutation` and `integers`; a resume may meet another numpy.
    """
    numbers: np.ndarray = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return numbers


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seed Python's, numpy's and torch's CPU generators from `key`; put them back afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - the shared one
    drawn = [int(number) for number in random_integers(3, *key)]
    random.seed(drawn[0])
    np.random.seed(drawn[1] % 2**32)  # noqa: NPY002 - the shared one
    torch.default_generator.manual_seed(drawn[2])
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002 - the shared one
        torch.set_rng_state(before[2])
