"""The global random generators, as they stand."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["generators"]


def generators() -> tuple[object, ...]:
    """Return the states of Python's, numpy's and torch's, to be compared."""
    shared: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the shared one
    return random.getstate(), shared["state"]["key"].tobytes(), torch.get_rng_state().numpy().tobytes()
