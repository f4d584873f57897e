"""AdamW with its two usual groups, and the warm-up and cosine of its rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["adamw", "warmup_cosine"]


def adamw(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.1,
) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters of `model`; only matrices decay, not biases and norms.

    `lr` counts where the experiment has no `learning_rate`.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [parameter for parameter in trainable if parameter.ndim >= 2],
            "weight_decay": weight_decay,
        },
        {"params": [parameter for parameter in trainable if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=betas)


def warmup_cosine(peak: float, *, warmup: int, steps: int, floor: float = 0.0) -> Callable[[int], float]:
    """Return the rate of each update: up to `peak` over `warmup` updates, then down a cosine to `floor`.

    Update 0 has `peak / warmup`; the last one, `steps - 1`, has almost `floor`. Past `steps` it is `floor`.
    A run of no more than `warmup` steps, as `--steps` may ask for one, sees only the way up.

    Raises:
        Rejected: `warmup` is below 0, or `floor` not from 0 to `peak`.
    """
    if warmup < 0 or not 0 <= floor <= peak:
        raise Rejected(
            f"warmup_cosine needs warmup >= 0 and 0 <= floor <= peak, got warmup={warmup}, floor={floor}, "
            f"peak={peak}"
        )

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        done = min((step - warmup) / max(steps - warmup, 1), 1.0)
        return floor + (peak - floor) * (1 + math.cos(math.pi * done)) / 2

    return rate
