"""A batch's data on its way to the device, and what a loss returned."""

from __future__ import annotations

from typing import Any

import torch

from runtime.errors import RunError

__all__ = ["check_loss", "to_device"]


def to_device(data: Any, device: torch.device) -> Any:
    """`data` (any nesting of tuples, lists, dicts of tensors) on `device`, without waiting for the copy."""
    if isinstance(data, torch.Tensor):
        if device.type == "cpu":
            return data
        return data.pin_memory().to(device, non_blocking=True)
    if isinstance(data, dict):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):  # a named tuple
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(to_device(value, device) for value in data)
    return data


def check_loss(loss: Any) -> torch.Tensor:
    """Return `loss` as it is.

    Raises:
        RunError: it is no 0-d tensor.
    """
    if isinstance(loss, torch.Tensor) and loss.ndim == 0:
        return loss
    got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
    raise RunError(f"a loss must return a 0-d tensor, got {got:.80}: take the mean of it")
