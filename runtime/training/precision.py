"""The number formats of a run: autocast around the loss, and gradient scaling for fp16."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from runtime.experiment.model import Precision as PrecisionName

__all__ = ["Precision"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast and scaling of one run; parameters and optimiser state stay as the file made them."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self._device_type = device.type
        self._autocast = _AUTOCAST.get(name)
        self._scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager[Any]:
        """A context for forward passes; weights cast inside it are forgotten at its end."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device_type, dtype=self._autocast)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, scaled where the format needs it."""
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call] # torch does not annotate it

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients to their own size, so that their norm can be measured and clipped."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Apply the gradients; in fp16 an overflow skips the update and lowers the scale."""
        if self._scaler is None:
            optimizer.step()
            return
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """The scale and its growth; empty where nothing is scaled."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`; one that was kept under another precision changes nothing."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)


def gradient_norm(parameters: Iterable[torch.nn.Parameter], *, clip: float | None) -> torch.Tensor:
    """The 2-norm of all gradients as they came; `clip` then shortens them to at most that length."""
    dense, sparse = [], []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            # The rows that it has, in its own memory: torch takes no norm of the whole.
            parameter.grad = parameter.grad.coalesce()
            sparse.append(parameter.grad.values())
        elif parameter.grad is not None:
            dense.append(parameter)
    norm = torch.nn.utils.get_total_norm([*(p.grad for p in dense if p.grad is not None), *sparse])
    if clip is not None:
        torch.nn.utils.clip_grads_with_norm_(dense, clip, norm)
        for rows in sparse:
            rows.mul_(torch.clamp(clip / (norm + 1e-6), max=1.0).to(rows.device))
    return norm
