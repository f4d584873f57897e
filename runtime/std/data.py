"""Orders of examples that are computed, never remembered: any batch without the ones before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate

from runtime.errors import Rejected
from runtime.experiment.model import Batch
from runtime.std.draws import random_integers, seeded
from runtime.std.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Dataset", "InOrder", "Shuffled", "Tensors", "Workers", "seeded"]


class Dataset(Protocol):
    """Examples with numbers 0..len-1, as `torch.utils.data.Dataset` has them."""

    def __len__(self) -> int:
        """Return how many examples there are."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return one example: tensors and numbers, nested in tuples, lists and dicts."""
        ...


class Tensors:
    """A dataset of examples that lie in memory: example *i* is row *i* of each tensor."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1:
            raise Rejected(f"Tensors needs tensors of one length, got the lengths {sorted(lengths)}")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def take(self, ids: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Return the rows `ids` of each tensor, as one batch."""
        rows = torch.as_tensor(ids)
        return tuple(tensor[rows] for tensor in self.tensors)


@dataclass
class Shuffled:
    """A loader that shows every example once an epoch, in an order drawn from (seed, epoch).

    Batches follow each other without a gap: one may hold the end of an epoch and the beginning of the next,
    so that no example is left out and every batch has `batch_size` examples. What `dataset[i]` draws
    from Python's, numpy's or torch's global generators is a function of (seed, batch), and leaves them
    as they were.
    """

    dataset: Dataset
    batch_size: int
    seed: int = 0
    collate: Callable[[list[Any]], Any] = default_collate
    _epoch: tuple[int, np.ndarray] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_sizes(self.dataset, self.batch_size)

    def ids(self, index: int) -> list[int]:
        """Return the numbers of the examples that batch `index` shows."""
        ids: list[int] = []
        position = index * self.batch_size
        while len(ids) < self.batch_size:
            epoch, start = divmod(position + len(ids), len(self.dataset))
            missing = self.batch_size - len(ids)
            ids.extend(self._order(epoch)[start : start + missing].tolist())
        return ids

    def batch(self, index: int) -> Batch:
        """Return batch `index` (from 0)."""
        data = _gather(self.dataset, self.ids(index), self.collate, key=(self.seed, index))
        return Batch(data, self.batch_size)

    def _order(self, epoch: int) -> np.ndarray:
        if self._epoch is None or self._epoch[0] != epoch:
            keys = random_integers(len(self.dataset), self.seed, epoch)
            self._epoch = epoch, np.argsort(keys, kind="stable")
        return self._epoch[1]


@dataclass
class InOrder:
    """A loader that shows every example once, in order, and then begins anew: for evaluations.

    The last batch of a round may be smaller. `len()` is the number of batches of one round.
    """

    dataset: Dataset
    batch_size: int
    collate: Callable[[list[Any]], Any] = default_collate

    def __post_init__(self) -> None:
        _check_sizes(self.dataset, self.batch_size)

    def __len__(self) -> int:
        return (len(self.dataset) + self.batch_size - 1) // self.batch_size

    def batch(self, index: int) -> Batch:
        """Return batch `index` (from 0)."""
        start = index % len(self) * self.batch_size
        ids = range(start, min(start + self.batch_size, len(self.dataset)))
        return Batch(_gather(self.dataset, ids, self.collate, key=(0, index)), len(ids))


def _gather(
    dataset: Dataset, ids: Sequence[int], collate: Callable[[list[Any]], Any], *, key: tuple[int, int]
) -> Any:
    if isinstance(dataset, Tensors) and collate is default_collate:
        return dataset.take(ids)  # draws nothing, so that it need not be seeded
    with seeded(*key):
        return collate([dataset[number] for number in ids])


def _check_sizes(dataset: Dataset, batch_size: int) -> None:
    if len(dataset) == 0:
        raise Rejected("a loader needs a dataset of at least one example, got none")
    if batch_size < 1:
        raise Rejected(f"batch_size must be at least 1, got {batch_size}")
