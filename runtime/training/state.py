"""Everything of a run that training changes, as tensors and JSON, and its way back into a fresh model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from runtime.checkpoints.format import encode_json, plan
from runtime.errors import Rejected, RunError
from runtime.training.optimizer import OptimizerState
from runtime.training.packing import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runtime.experiment.model import Experiment
    from runtime.training.precision import Precision

__all__ = ["TrainingState"]

_READ_ONCE = ("model/", "buffers/", "optimizer.state.state")
"""Tensors whose restoring copies them; all others are handed to code that may keep them as they are."""


class TrainingState:
    """The parameters, buffers, optimiser, precision and what the loss keeps, of one experiment.

    Made while all of it is still as the file made it: a checkpoint says of what form each tensor was made,
    which is how an edited file is told from a buffer that training has made, replaced or let grow.
    """

    def __init__(self, experiment: Experiment, precision: Precision) -> None:
        self._experiment = experiment
        self._precision = precision
        self._optimizer = OptimizerState(experiment.optimizer, experiment.model)
        self._made = dict(_forms(experiment.model))

    def check(self) -> None:
        """Refuse, before anything starts, what could not be saved later.

        Raises:
            ValueError: a value that no checkpoint can keep, or a trained tensor that is not the model's.
        """
        tensors, data = self.capture()
        plan(tensors)
        encode_json(data)
        own = {id(tensor) for _, tensor in _model_tensors(self._experiment.model)}
        trained = self._optimizer.parameters
        strangers = [tuple(parameter.shape) for parameter in trained if id(parameter) not in own]
        if strangers:
            raise ValueError(
                f"the optimiser trains tensors of shapes {strangers} that are not in the model's "
                "state_dict, so no checkpoint would hold them: register them as parameters of the model, and "
                "let its state_dict name them all"
            )

    def expected_bytes(self) -> int:
        """How large a checkpoint will be; an optimiser without state yet is taken to keep two values each."""
        tensors, _ = self.capture()
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if self._experiment.optimizer.state:
            return size
        return size + 2 * sum(p.numel() * p.element_size() for p in self._optimizer.parameters)

    def capture(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The state as it is now: tensors by name, not copied, and JSON that refers to them."""
        tensors = dict(_model_tensors(self._experiment.model))
        tensors |= dict(_other_buffers(self._experiment.model))
        data: dict[str, Any] = {"made": self._made}
        for name, value in self._parts().items():
            data[name], found = pack(name, value)
            tensors |= found
        return tensors, data

    def fit(self, tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any], *, source: str) -> None:
        """Refuse state that this experiment could not go on from; nothing is changed.

        Raises:
            Rejected: a tensor of the model, or a group of the optimiser, is of another name, shape or kind.
        """
        made: Mapping[str, str] = data["made"]
        for name in sorted(made.keys() | self._made.keys()):
            there, here = made.get(name, "missing"), self._made.get(name, "missing")
            if here != there and name.startswith("model/"):
                raise _misfit(source, name, there, here)
        misfit = self._optimizer.misfit(unpack(data["optimizer"], tensors))
        if misfit:
            raise _misfit(source, "the optimiser", *misfit)
        here, there = (
            ", ".join(sorted(names)) or "empty" for names in (self._experiment.state, _names(data))
        )
        if here != there:
            raise _misfit(source, "what `state` keeps", there, here)

    def restore(self, tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> None:
        """Make this experiment's state what `fit` accepted. Values keep their bits and their formats."""
        tensors = _owned(tensors)
        self._restore_model(tensors, data["made"])
        extra = unpack(data["extra"], tensors)
        for name, module in self._experiment.model.named_modules():
            if name in extra:
                module.set_extra_state(extra[name])
        self._optimizer.restore(unpack(data["optimizer"], tensors))
        self._precision.load_state_dict(unpack(data["precision"], tensors))
        for name, value in unpack(data["state"], tensors).items():
            try:
                self._experiment.state[name].load_state_dict(value)
            except Exception as error:
                raise RunError(
                    f"state[{name!r}] does not take what the checkpoint holds of it "
                    f"({type(error).__name__}: {error}): undo the change, or give the changed experiment a "
                    "slug of its own"
                ) from error

    def _parts(self) -> dict[str, Any]:
        return {
            "extra": dict(_extra_state(self._experiment.model)),
            "optimizer": self._optimizer.capture(),
            "precision": self._precision.state_dict(),
            "state": {name: part.state_dict() for name, part in self._experiment.state.items()},
        }

    def _restore_model(self, tensors: Mapping[str, torch.Tensor], made: Mapping[str, str]) -> None:
        model = self._experiment.model
        device = self._optimizer.parameters[0].device
        own = dict(_model_tensors(model)) | dict(_other_buffers(model))
        for name, tensor in tensors.items():
            kind, _, path = name.partition("/")
            if kind == "buffers" and made.get(name) != self._made.get(name):
                continue  # a mask or a table that the file makes in another form now
            if name in own and _fits(own[name], tensor):
                with torch.no_grad():
                    own[name].copy_(tensor)
            elif kind in {"model", "buffers"}:
                _put(model, path, tensor.to(device, copy=True), persistent=kind == "model")


def _owned(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """In memory of its own whatever would keep the reader's one buffer alive for as long as the run lasts."""
    return {
        name: tensor if name.startswith(_READ_ONCE) else tensor.clone() for name, tensor in tensors.items()
    }


def _fits(buffer: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether `tensor` can be copied into place; an expanded buffer has fewer places than elements."""
    expanded = any(
        stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape, strict=True)
    )
    return _form(buffer) == _form(tensor) and not expanded


def _put(model: torch.nn.Module, path: str, tensor: torch.Tensor, *, persistent: bool) -> None:
    """Put a buffer where training had made it, or replaced it by one of another shape."""
    owner, _, leaf = path.rpartition(".")
    module = model.get_submodule(owner)
    if leaf in module._buffers:  # noqa: SLF001 - torch has no other way to one that is None
        setattr(module, leaf, tensor)
    else:
        module.register_buffer(leaf, tensor, persistent=persistent)


def _model_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers, a tied one once, under the first of its names."""
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        is_extra = name.rpartition(".")[2] == "_extra_state"  # kept apart: it may be any value
        if isinstance(value, torch.Tensor) and not is_extra and id(value) not in seen:
            seen.add(id(value))
            yield f"model/{name}", value


def _other_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that the model's own state_dict leaves out: non-persistent, and changed all the same."""
    own = {id(tensor) for _, tensor in _model_tensors(model)}
    for name, buffer in model.named_buffers():
        if id(buffer) not in own:
            yield f"buffers/{name}", buffer


def _forms(model: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """The form of every tensor of the model; of a buffer that is still None, that."""
    for name, tensor in (*_model_tensors(model), *_other_buffers(model)):
        yield name, _form(tensor)
    for prefix, module in model.named_modules():
        for leaf, buffer in module._buffers.items():  # noqa: SLF001 - torch does not list those that are None
            if buffer is None:
                kind = "buffers" if leaf in module._non_persistent_buffers_set else "model"  # noqa: SLF001
                yield f"{kind}/{prefix}{'.' if prefix else ''}{leaf}", "None"


def _extra_state(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            yield name, module.get_extra_state()


def _names(data: Mapping[str, Any]) -> list[str]:
    return [name for name, _ in data["state"]["dict"]]


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _misfit(source: str, what: str, there: str, here: str) -> Rejected:
    return Rejected(
        f"{source} does not fit this experiment file: {what} is {there} in it and {here} here: undo the "
        "change, or give the changed experiment a slug of its own"
    )
