"""Knobs: the named, typed, overridable values of an experiment file."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from runtime.errors import Rejected
from runtime.experiment._checks import MAX_INT, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Knob", "bind", "close_to", "read_knobs", "read_variants"]

INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
SCALARS = (int, float, str, bool)


@dataclass(frozen=True, slots=True)
class Knob:
    """One field of a file's `Knobs`: its name, and its type, one of int, float, str, bool or a Literal."""

    name: str
    type: Any

    @property
    def accepts(self) -> str:
        """What a value of this knob may be, in words."""
        if typing.get_origin(self.type) is Literal:
            return "one of " + ", ".join(_spelled(value) for value in typing.get_args(self.type))
        words = {
            int: "an integer of 64 bits",
            float: "a number",
            bool: "true or false",
            str: "text in Unicode",
        }
        return words[self.type]

    def parse(self, text: str) -> Any:
        """Return the value that `text` spells on a command line.

        Raises:
            Rejected: it spells none of this knob's type.
        """
        if typing.get_origin(self.type) is Literal:
            spelled = {_spelled(value): value for value in typing.get_args(self.type)}
            value = spelled.get(text, text)
        elif self.type is bool:
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif self.type is float:
            value = _float(text)
        elif self.type is int and INTEGER.fullmatch(text) and len(text) < 100:
            value = int(text)
        else:
            value = text
        return self.check(value)

    def check(self, value: Any) -> Any:
        """Return `value` as a value of this knob; an int becomes a float where one is wanted.

        Raises:
            Rejected: it is none of this knob's type.
        """
        if typing.get_origin(self.type) is Literal:
            choices = typing.get_args(self.type)
            good = any(type(value) is type(choice) and value == choice for choice in choices)
        elif self.type is float and type(value) is int:
            value, good = float(value), True
        elif self.type is int:
            good = type(value) is int and abs(value) <= MAX_INT
        else:
            good = type(value) is self.type and not (isinstance(value, str) and _has_surrogate(value))
        if not good:
            raise Rejected(f"knob {self.name} takes {self.accepts}, got {shown(value)}")
        return value


def read_knobs(knobs: type) -> dict[str, Knob]:
    """Return the knobs of a file's class `Knobs`, in its order.

    Raises:
        Rejected: it is no frozen dataclass with defaults, a field has another type, or `steps` is missing.
    """
    if not dataclasses.is_dataclass(knobs) or not knobs.__dataclass_params__.frozen:  # type: ignore[attr-defined] # a dataclass has it
        raise Rejected("Knobs must be a frozen dataclass: write @dataclass(frozen=True) above class Knobs")
    try:
        types = typing.get_type_hints(knobs)
    except Exception as error:
        raise Rejected(f"the types of Knobs cannot be read: {error}") from error
    fields = {field.name: _read_field(field, types[field.name]) for field in dataclasses.fields(knobs)}
    if "steps" not in fields or fields["steps"].type is not int:
        raise Rejected("Knobs must have the knob steps, an integer: add `steps: int = 1000` to class Knobs")
    if fields.get("eval_every", fields["steps"]).type is not int:
        raise Rejected("the knob eval_every must be an integer: write `eval_every: int = 100` in class Knobs")
    return fields


def _read_field(field: dataclasses.Field[Any], kind: Any) -> Knob:
    if typing.get_origin(kind) is Literal:
        good = all(type(value) in SCALARS for value in typing.get_args(kind))
    else:
        good = kind in SCALARS
    if not good:
        name = getattr(kind, "__name__", None) or str(kind)
        raise Rejected(
            f"knob {field.name} has the type {name}; accepted: int, float, str, bool, Literal[...]"
        )
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    if not has_default or not field.init:
        raise Rejected(f"knob {field.name} must have a default value")
    return Knob(field.name, kind)


def read_variants(module: Mapping[str, Any], knobs: type) -> dict[str, Any]:
    """Return the variants of a file: names to instances of its `Knobs`. A file may have none.

    Raises:
        Rejected: `VARIANTS` is something else.
    """
    variants = module.get("VARIANTS", {})
    good = isinstance(variants, dict) and all(
        isinstance(name, str) and name and isinstance(value, knobs) for name, value in variants.items()
    )
    if not good:
        raise Rejected(f"VARIANTS must be a dict of names to Knobs(...), got {shown(variants)}")
    return dict(variants)


def bind(
    knobs: type,
    variants: Mapping[str, Any],
    *,
    variant: str | None,
    values: Mapping[str, str | float],
) -> Any:
    """Return an instance of `knobs`: the variant's values, and over them `values`.

    A string in `values` is parsed by the knob's type. An unset `variant` means the class's defaults.

    Raises:
        Rejected: an unknown variant or knob, or a value that the knob does not take.
    """
    fields = read_knobs(knobs)
    if variant is not None and variant not in variants:
        accepted = ", ".join(variants) or "none: the file has no VARIANTS"
        raise Rejected(f"unknown variant {variant!r}{close_to(variant, variants)}; accepted: {accepted}")
    chosen = knobs() if variant is None else variants[variant]
    bound = {name: knob.check(getattr(chosen, name)) for name, knob in fields.items()}
    for name, value in values.items():
        bound[name] = _override(fields, name, value)
    return dataclasses.replace(chosen, **bound)


def _override(fields: Mapping[str, Knob], name: str, value: str | float) -> Any:
    if name in fields:
        return fields[name].parse(value) if isinstance(value, str) else fields[name].check(value)
    if name == "eval_every":
        raise Rejected(
            "the file has no knob eval_every: add `eval_every: int = 100` to Knobs, and "
            "every=knobs.eval_every to its evaluations"
        )
    raise Rejected(f"unknown knob {name!r}{close_to(name, fields)}; accepted: {', '.join(fields)}")


def close_to(name: str, names: Iterable[str]) -> str:
    """Return `, did you mean 'x'?`, or nothing where no name comes close."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _float(text: str) -> float | str:
    try:
        value = float(text)
    except ValueError:
        return text
    overflows = math.isinf(value) and "inf" not in text.lower()
    return text if overflows else value


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
