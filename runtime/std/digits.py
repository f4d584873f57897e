"""Scikit-learn's handwritten digits: 1,797 pictures of 8 x 8, small enough to train on in seconds."""

# Shapes: N pictures of 64 pixels.

from __future__ import annotations

import numpy as np
import torch

from runtime.errors import Rejected
from runtime.std.data import Tensors
from runtime.std.draws import random_integers

__all__ = ["NUM_CLASSES", "SIDE", "load"]

NUM_CLASSES = 10
SIDE = 8
"""Height and width of a picture."""


def load(*, held_out: float = 0.2) -> tuple[Tensors, Tensors]:
    """Return (train, held out), each of (pixels_64 in [0, 1] as float32, class as int64).

    Which pictures are held out is the same in every call. They come with scikit-learn, not over a network.

    Raises:
        Rejected: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise Rejected("sexpgpu.digits needs scikit-learn: pip install 'slugline[digits]'") from error
    pixels, labels = load_digits(return_X_y=True)
    pixels_N64 = torch.from_numpy((pixels / 16).astype(np.float32))
    labels_N = torch.from_numpy(labels.astype(np.int64))
    order = torch.from_numpy(np.argsort(random_integers(len(labels_N), 0), kind="stable"))
    apart, train = order[: int(held_out * len(order))], order[int(held_out * len(order)) :]
    return Tensors(pixels_N64[train], labels_N[train]), Tensors(pixels_N64[apart], labels_N[apart])
