"""Everything of a run that training changes, as tensors and JSON, and its way back into a fresh model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from runtime.errors import Rejected
from runtime.training.packing import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from runtime.experiment.model import Experiment
    from runtime.training.precision import Precision

__all__ = ["TrainingState"]


class TrainingState:
    """The parameters, buffers, optimiser, precision and what the loss keeps, of one experiment.

    Made while the optimiser's options are still as the file set them: a resume compares these with the
    file's of then, so that an option that was edited follows the file and all others the checkpoint.
    """

    def __init__(self, experiment: Experiment, precision: Precision) -> None:
        self._experiment = experiment
        self._precision = precision
        self._options = _options(experiment.optimizer.param_groups)

    def check(self) -> None:
        """Refuse, before anything starts, what could not be saved later.

        Raises:
            ValueError: a value that no checkpoint can keep, or a trained tensor that is not the model's.
        """
        self.capture()
        own = {id(tensor) for _, tensor in _model_tensors(self._experiment.model)}
        trained = _parameters(self._experiment.optimizer)
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
        return size + 2 * sum(p.numel() * p.element_size() for p in _parameters(self._experiment.optimizer))

    def capture(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The state as it is now: tensors by name, not copied, and JSON that refers to them."""
        tensors = dict(_model_tensors(self._experiment.model))
        tensors |= {f"buffers/{name}": buffer for name, buffer in _other_buffers(self._experiment.model)}
        data: dict[str, Any] = {}
        for name, value in self._parts().items():
            data[name], found = pack(name, value)
            tensors |= found
        return tensors, data

    def fit(self, tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any], *, source: str) -> None:
        """Refuse state that this experiment could not go on from; nothing is changed.

        Raises:
            Rejected: a tensor of the model, or a group of the optimiser, is of another name, shape or kind.
        """
        expected = {name: _form(tensor) for name, tensor in _model_tensors(self._experiment.model)}
        found = {name: _form(tensor) for name, tensor in tensors.items() if name.startswith("model/")}
        for name in sorted(expected.keys() | found.keys()):
            here, there = expected.get(name, "missing"), found.get(name, "missing")
            if here != there:
                raise _misfit(source, name, there, here)
        saved = unpack(data["optimizer"], tensors)["param_groups"]
        optimizer = self._experiment.optimizer
        here, there = _groups(_kind(optimizer), optimizer.param_groups), _groups(data["kind"], saved)
        if here != there:
            raise _misfit(source, "the optimiser", there, here)
        here, there = (
            ", ".join(sorted(names)) or "empty" for names in (self._experiment.state, _names(data))
        )
        if here != there:
            raise _misfit(source, "what `state` keeps", there, here)

    def restore(self, tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> None:
        """Make this experiment's state what `fit` accepted. Values keep their bits and their formats."""
        self._restore_model(tensors, data)
        tensors = self._owned(tensors)
        options = unpack(data["options"], tensors)
        self._restore_optimizer(unpack(data["optimizer"], tensors), options)
        self._precision.load_state_dict(unpack(data["precision"], tensors))
        for name, value in unpack(data["state"], tensors).items():
            self._experiment.state[name].load_state_dict(value)

    def _parts(self) -> dict[str, Any]:
        return {
            "kind": _kind(self._experiment.optimizer),
            "extra": dict(_extra_state(self._experiment.model)),
            "optimizer": self._experiment.optimizer.state_dict(),
            "options": self._options,
            "precision": self._precision.state_dict(),
            "state": {name: part.state_dict() for name, part in self._experiment.state.items()},
        }

    def _owned(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What is not the model's, in memory of its own where it would stay in the reader's one buffer."""
        on_cpu = all(parameter.device.type == "cpu" for parameter in self._experiment.model.parameters())
        return {
            name: tensor.clone() if on_cpu else tensor
            for name, tensor in tensors.items()
            if not name.startswith("model/")
        }

    def _restore_model(self, tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in _model_tensors(self._experiment.model):
                tensor.copy_(tensors[name])
        extra = unpack(data["extra"], tensors)
        for name, module in self._experiment.model.named_modules():
            if name in extra:
                module.set_extra_state(extra[name])
        self._restore_other_buffers(tensors)

    def _restore_other_buffers(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """A cache may have grown since the model was made: its shape is the checkpoint's, not the file's."""
        found = dict(_other_buffers(self._experiment.model))
        for name, tensor in tensors.items():
            buffer = found.get(name.removeprefix("buffers/")) if name.startswith("buffers/") else None
            if buffer is None:
                continue
            if _form(buffer) == _form(tensor):
                with torch.no_grad():
                    buffer.copy_(tensor)
            else:
                owner, _, leaf = name.removeprefix("buffers/").rpartition(".")
                module = self._experiment.model.get_submodule(owner)
                setattr(module, leaf, tensor.to(buffer.device, copy=True))

    def _restore_optimizer(self, saved: dict[str, Any], options: Sequence[Mapping[str, Any]]) -> None:
        optimizer = self._experiment.optimizer
        groups = zip(saved["param_groups"], options, self._options, strict=True)
        for group, then, now in groups:
            group.update({key: value for key, value in now.items() if key not in then or then[key] != value})
        optimizer.load_state_dict(saved)
        parameters = _parameters(optimizer)
        indices = [index for group in saved["param_groups"] for index in group["params"]]
        for parameter, index in zip(parameters, indices, strict=True):
            _keep_formats(optimizer.state.get(parameter), saved["state"].get(index))


def _model_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers, a tied one once, under the first of its names."""
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if (
            not isinstance(value, torch.Tensor) or name.rpartition(".")[2] == "_extra_state"
        ):  # kept apart: any value
            continue
        if id(value) not in seen:
            seen.add(id(value))
            yield f"model/{name}", value


def _other_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that the model's own state_dict leaves out: non-persistent, and changed all the same."""
    own = {id(tensor) for _, tensor in _model_tensors(model)}
    for name, buffer in model.named_buffers():
        if id(buffer) not in own:
            yield name, buffer


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _extra_state(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            yield name, module.get_extra_state()


def _kind(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__qualname__


def _groups(kind: str, groups: Sequence[Mapping[str, Any]]) -> str:
    sizes = " and ".join(str(len(group["params"])) for group in groups)
    return f"{kind} of {sizes} tensors"


def _names(data: Mapping[str, Any]) -> list[str]:
    return [name for name, _ in data["state"]["dict"]]


def _options(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The options of the optimiser's groups without their parameters; tensors among them as numbers."""
    return [
        {
            key: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
            for key, value in group.items()
            if key != "params"
        }
        for group in groups
    ]


def _keep_formats(loaded: dict[str, Any] | None, saved: Mapping[str, Any] | None) -> None:
    """Undo that torch casts an optimiser's state to its parameter's dtype: fp32 moments of bf16 weights."""
    if loaded is None or saved is None:
        return
    for key, value in saved.items():
        if isinstance(value, torch.Tensor) and loaded[key].dtype != value.dtype:
            loaded[key] = value.to(loaded[key].device)


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _misfit(source: str, what: str, there: str, here: str) -> Rejected:
    return Rejected(
        f"{source} does not fit this experiment file: {what} is {there} in it and {here} here: undo the "
        "change, or give the changed experiment a slug of its own"
    )
