from __future__ import annotations

import sys

import pytest
import torch

from runtime.errors import Rejected
from runtime.std import digits


def test_every_picture_is_in_one_of_the_two_sets_and_always_in_the_same():
    pytest.importorskip("sklearn", reason="the extra digits is not installed")
    (train, held_out), (again, _) = digits.load(held_out=0.2), digits.load(held_out=0.2)
    assert (len(train), len(held_out)) == (1438, 359)
    assert torch.equal(train.tensors[0], again.tensors[0])
    pixels, labels = train.tensors
    assert pixels.shape == (1438, digits.SIDE**2)
    assert pixels.dtype == torch.float32
    assert (float(pixels.min()), float(pixels.max())) == (0.0, 1.0)
    assert set(labels.tolist()) == set(range(digits.NUM_CLASSES))


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(Rejected, match=r"pip install 'slugline\[digits\]'"):
        digits.load()
