"""Any nesting of dicts, lists and tensors as plain JSON and named tensors, and back without a change.

Optimisers and the `state` of an experiment keep what they like; a checkpoint keeps JSON and tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["pack", "unpack"]

Json: TypeAlias = "bool | int | float | str | list[Any] | dict[str, Any] | None"


def pack(name: str, value: Any) -> tuple[Json, dict[str, torch.Tensor]]:
    """Return `value` as JSON, and its tensors under names that begin with `name`.

    Tensors are not copied. Whatever JSON has no form for is a one-key object: `{"tensor": name}`,
    `{"tuple": [...]}`, `{"dict": [[key, value], ...]}`, `{"float": "nan"}`, `{"array": name}`.

    Raises:
        ValueError: a value that is none of these; the text says where it is.
    """
    tensors: dict[str, torch.Tensor] = {}
    return _pack(name, value, tensors), tensors


def unpack(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return what `pack` was given, with the tensors of `tensors`."""
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _UNPACK[kind](content, tensors)


def _pack(name: str, value: Any, tensors: dict[str, torch.Tensor]) -> Json:
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):  # NumPy's float64 is a float too
        return _pack_tensor(name, value, tensors)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, list | tuple):
        items = [_pack(f"{name}.{index}", item, tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, Mapping):
        pairs = [[_key(name, key), _pack(f"{name}.{key}", item, tensors)] for key, item in value.items()]
        return {"dict": pairs}
    raise ValueError(_refusal(name, f"a {type(value).__qualname__}"))


def _pack_tensor(name: str, value: Any, tensors: dict[str, torch.Tensor]) -> Json:
    while name in tensors:  # {"a.b": x, "a": {"b": y}}
        name += "'"
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, np.ma.MaskedArray):  # its mask would be lost
        raise ValueError(_refusal(name, "a masked NumPy array"))  # noqa: TRY004 - as all others are refused
    try:
        # A copy: the file may go on writing into its own. In this machine's byte order: torch has no other.
        tensors[name] = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))
    except TypeError:
        raise ValueError(_refusal(name, f"a NumPy array of {value.dtype}")) from None
    return {"array": [name, value.dtype.str, isinstance(value, np.generic)]}


def _refusal(name: str, what: str) -> str:
    return (
        f"{name} is {what}, which a checkpoint cannot keep: use numbers, texts, tensors, arrays, and lists, "
        "tuples and dicts of them"
    )


def _key(name: str, key: object) -> str | int:
    if isinstance(key, str) or type(key) is int:
        return key
    raise ValueError(f"{name} has the key {key!r}, which a checkpoint cannot keep: use texts or integers")


def _array(content: list[Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    name, dtype, is_scalar = content
    array = tensors[name].numpy().astype(np.dtype(dtype), copy=True)
    return array[()] if is_scalar else array


_UNPACK: Mapping[str, Callable[[Any, Mapping[str, torch.Tensor]], Any]] = {
    "float": lambda content, _: float(content),
    "tensor": lambda content, tensors: tensors[content],
    "array": _array,
    "tuple": lambda content, tensors: tuple(unpack(item, tensors) for item in content),
    "dict": lambda content, tensors: {key: unpack(item, tensors) for key, item in content},
}
