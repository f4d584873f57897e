"""An optimiser's state as a checkpoint keeps it: every value in its own format, edited options the file's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from runtime.errors import RunError
from runtime.training.packing import pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["OptimizerState"]


class OptimizerState:
    """The state of one optimiser over parameters of one model.

    Made while the options are still as the file set them: a resume compares these with the file's of then,
    so that an option that was edited follows the file and all others the checkpoint.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self._optimizer = optimizer
        self._options = [_options(group) for group in optimizer.param_groups]
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._parameters = self._trained()

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained, in the optimiser's order."""
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def capture(self) -> dict[str, Any]:
        """The state as it is now; its tensors are not copied.

        Raises:
            RunError: it trains others than it was made for, which no file makes again.
        """
        now = self._trained()
        if now != self._parameters:
            raise RunError(
                f"the optimiser became {_shape(self._kind, now)} and was made as "
                f"{_shape(self._kind, self._parameters)}, so no resume could go on from here: make every "
                "group in experiment(), and hold one back with requires_grad or a rate of 0"
            )
        return {
            "kind": self._kind,
            "state": self._optimizer.state_dict(),
            "options": self._options,
            "parameters": self._parameters,
        }

    def misfit(self, saved: Mapping[str, Any]) -> tuple[str, str] | None:
        """Say what `saved` was of and what this optimiser is, where it cannot go on from that."""
        there, here = saved["parameters"], self._parameters
        if saved["kind"] != self._kind or [len(group) for group in there] != [len(group) for group in here]:
            return _shape(saved["kind"], there), _shape(self._kind, here)
        for number, (then, now) in enumerate(zip(there, here, strict=True)):
            moved = sorted(set(then) ^ set(now))
            if moved:
                place = f"{moved[0]} in group {number}"
                words = f"{self._kind} with {place}", f"{self._kind} without"
                return words if moved[0] in then else (words[1], words[0])
        return None

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Make the state what `capture` returned; nothing of it keeps the memory that `saved` is in."""
        optimizer, state = self._optimizer, saved["state"]
        made = [dict(group) for group in optimizer.param_groups]
        for number, group in enumerate(state["param_groups"]):
            # By name: a file may collect its parameters in a set, whose order is another one in each process.
            indices = dict(zip(saved["parameters"][number], group["params"], strict=True))
            group["params"] = [indices[name] for name in self._parameters[number]]
            then = saved["options"][number]
            group |= {key: made[number][key] for key in self._edited(number, then)}
        optimizer.load_state_dict(state)
        for group, before in zip(optimizer.param_groups, made, strict=True):
            group |= {
                key: _as_placed(value, before.get(key)) for key, value in group.items() if key != "params"
            }
        order = [index for group in state["param_groups"] for index in group["params"]]
        keys = {**{key: key for key in state["state"]}, **dict(zip(order, self.parameters, strict=True))}
        for index, value in state["state"].items():
            optimizer.state[keys[index]] = _faithful(value, optimizer.state[keys[index]])

    def _edited(self, number: int, then: Mapping[str, Any]) -> list[str]:
        now = self._options[number]
        return [key for key in now if key not in then or not _equal(then[key], now[key])]

    def _trained(self) -> list[list[str]]:
        """The names of what is trained, by group."""
        return [
            [self._names.get(id(parameter), "a parameter of no model") for parameter in group["params"]]
            for group in self._optimizer.param_groups
        ]

    @property
    def _kind(self) -> str:
        return type(self._optimizer).__qualname__


def _shape(kind: str, groups: Sequence[Sequence[str]]) -> str:
    return f"{kind} of {' and '.join(str(len(group)) for group in groups)} tensors"


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group's options without its parameters, as they are now: tensors among them change in place."""
    return {
        key: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }


def _equal(one: Any, other: Any) -> bool:
    (here, tensors), (there, others) = pack("", one), pack("", other)
    return here == there and all(
        (tensor.dtype, tensor.shape) == (others[name].dtype, others[name].shape)
        and torch.equal(tensor.cpu(), others[name].cpu())
        for name, tensor in tensors.items()
    )


def _as_placed(value: Any, before: Any) -> Any:
    """A tensor among the options, on the device where the file had put it."""
    if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
        return value.to(before.device)
    return value


def _faithful(saved: Any, loaded: Any) -> Any:
    """`loaded`, as torch has made it of `saved`, with what that changed put right.

    It casts values to their parameter's dtype (fp32 moments of bf16 weights), and keeps others as they are:
    views of the one buffer into which a whole checkpoint was read.
    """
    if isinstance(saved, torch.Tensor):
        if loaded is saved:
            return saved.clone()
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device, copy=True)
    if isinstance(saved, dict):
        return {key: _faithful(saved[key], value) if key in saved else value for key, value in loaded.items()}
    if isinstance(saved, list | tuple) and isinstance(loaded, list | tuple):
        return type(saved)(_faithful(one, other) for one, other in zip(saved, loaded, strict=True))
    return loaded
