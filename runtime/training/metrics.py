"""Metrics: what a loss reports with `metric()`, until it becomes one point per name, metadata and step."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from runtime.events.limits import check_metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    Number: TypeAlias = "float | torch.Tensor"
    Rate: TypeAlias = "tuple[Series, float, Callable[[], float]]"

__all__ = ["Collector", "Pending", "Series", "collecting", "held", "metric"]

RESERVED = frozenset(
    {"train/loss", "train/grad_norm", "train/lr", "rate/tokens", "rate/examples", "eval/loss"}
)
"""The runtime's own names; a file may use them under metadata of its own."""

_MAX_KNOWN = 4_096


def metric(name: str, value: Number, /, **metadata: str) -> None:
    """Report a number from inside the loss: one point per step (or pass) under this name and metadata.

    `value` is a number or a 0-d tensor; it is taken as it is now, and leaves the device later, without
    waiting for it. The point is the mean over the step's microbatches, weighted by their examples; the
    runtime adds `split`, `stage` and, in an evaluation, `pass`, and these win. Outside a run it does
    nothing, so that a loss can be tried by itself.

    Raises:
        ValueError: the name, the value or the metadata is nothing that Metrics takes.
    """
    if _active is not None:
        _active.add(name, value, metadata)


@dataclass(frozen=True, slots=True)
class Series:
    """What the points of one curve share: their name and their whole metadata, the runtime's included."""

    name: str
    metadata: Mapping[str, str]
    key: tuple[object, ...]
    """Both of them, for looking a series up."""


class Collector:
    """Takes the values of one kind of pass (training in a stage, or one evaluation) as they come.

    It lives as long as its metadata is right, and remembers which names and metadata it has checked:
    a call costs about a microsecond.
    """

    def __init__(self, metadata: Mapping[str, str]) -> None:
        import torch

        self._tensor = torch.Tensor
        self.weight = 1
        """The examples of the microbatch whose values come now."""
        self._metadata = dict(metadata)
        self._values: list[tuple[Series, Number, int]] = []
        self._known: dict[Any, Series] = {}
        self._series: dict[Any, Series] = {}
        self._own: dict[str, Series] = {}

    def add(self, name: str, value: Number, metadata: Mapping[str, str]) -> None:
        """Take one value of the experiment file's. Raises as `metric` does."""
        key = (name, *metadata.items()) if metadata else name
        try:
            series = self._known[key]
        except (KeyError, TypeError):  # a value that cannot be a key is no string: the check says so
            series = self._learn(key, name, metadata)
        if type(value) is not float:
            # The quick way for what a loss usually has; everything else is looked at closely.
            number = value.item() if type(value) is self._tensor and value.is_cpu and not value.ndim else None
            value = number if type(number) is float else _taken(name, value)
        self._values.append((series, value, self.weight))

    def own(self, name: str) -> Series:
        """Return the series of one of the runtime's names, for `Pending`."""
        series = self._own.get(name)
        if series is None:
            series = self._own[name] = self.series_under(name, {})
        return series

    def series_under(self, name: str, metadata: Mapping[str, str]) -> Series:
        """Return the series of a name under this metadata and the runtime's, which wins."""
        merged = {**metadata, **self._metadata}
        key = (name, *sorted(merged.items()))
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(name, merged, key)
        return series

    def own_value(self, name: str, value: Number) -> None:
        """Take a value of the runtime's own."""
        self._values.append((self.own(name), value, self.weight))

    def take(self) -> list[tuple[Series, Number, int]]:
        """Return the values since the last call, in order, and forget them."""
        values, self._values = self._values, []
        return values

    def _learn(self, key: Any, name: str, metadata: Mapping[str, str]) -> Series:
        merged = {**metadata, **self._metadata}
        check_metric(name, metadata)
        check_metric(name, merged)
        if name in RESERVED and merged == self._metadata:
            raise ValueError(
                f"metric name {name!r} is the runtime's: choose another name, or add metadata of your own"
            )
        if len(self._known) >= _MAX_KNOWN:  # metadata that changes at every call must not fill the memory
            self._known.clear()
            self._series.clear()
        series = self.series_under(name, merged)
        self._known[key] = series
        return series


class Pending:
    """The values of one step on their way to points. Tensors leave the device in one copy per dtype.

    `rate` is a last point: so much, in so many seconds. Made on the training thread, which it does not
    hold up; `points` is called once, on another thread, and waits there until the device is done.
    """

    def __init__(self, values: Sequence[tuple[Series, Number, int]], *, rate: Rate | None = None) -> None:
        self._rate = rate
        self._series = [(series, weight) for series, _, weight in values]
        self._numbers = _leave_device([value for _, value, _ in values])

    def points(self) -> list[tuple[str, float, Mapping[str, str]]]:
        """One point per series in the order of their first values: the mean, weighted by examples."""
        sums: dict[object, tuple[Series, list[tuple[float, int]]]] = {}
        for (series, weight), number in zip(self._series, self._numbers(), strict=True):
            sums.setdefault(series.key, (series, []))[1].append((number, weight))
        points = [(series.name, _mean(values), series.metadata) for series, values in sums.values()]
        if self._rate is not None:
            series, amount, seconds = self._rate
            points.append((series.name, amount / max(seconds(), 1e-9), series.metadata))
        return points


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Hand what `metric` is called with to `collector` meanwhile."""
    global _active  # noqa: PLW0603 - the file's loss takes no argument for it; a ContextVar costs more
    before, _active = _active, collector
    try:
        yield
    finally:
        _active = before


_active: Collector | None = None


def held(value: torch.Tensor) -> Number:
    """A 0-d tensor as it is now: a number where reading it waits for nothing, else a copy on its device."""
    if value.device.type == "cpu":
        return float(value.item())
    return value.detach().clone()


def _taken(name: str, value: Any) -> Number:
    """The value as it is now: a later change in place, of the tensor or its memory, must not reach it."""
    try:
        if isinstance(value, int | float):
            return float(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return _from_tensor(name, value)
        if getattr(value, "ndim", None) == 0:  # NumPy's scalars and 0-d arrays
            return float(value)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"metric {name!r} takes a real number, got {value!r:.60}: {error}") from error
    raise ValueError(f"metric {name!r} takes a number or a 0-d tensor, got {value!r:.60}")


def _from_tensor(name: str, value: torch.Tensor) -> Number:
    if value.ndim:
        shape = tuple(value.shape)
        raise ValueError(f"metric {name!r} takes a 0-d tensor, got one of shape {shape}: reduce it first")
    if value.is_complex():
        raise ValueError(f"metric {name!r} takes a real number, got a tensor of {value.dtype}")
    return held(value)


def _mean(values: Sequence[tuple[float, int]]) -> float:
    if len(values) == 1:
        return values[0][0]
    total = sum(weight for _, weight in values)
    return sum(number * weight for number, weight in values) / total


def _leave_device(values: Sequence[Number]) -> Callable[[], list[float]]:
    """Start moving tensors to the host; the function returned waits for them and gives all as floats."""
    tensors = [(index, value) for index, value in enumerate(values) if not isinstance(value, float)]
    if not tensors:
        numbers = list(values)
        return lambda: numbers  # type: ignore[return-value] # every one of them is a float here
    return _copied(values, tensors)


def _copied(
    values: Sequence[Number], tensors: Sequence[tuple[int, torch.Tensor]]
) -> Callable[[], list[float]]:
    import torch

    groups: dict[torch.dtype, list[tuple[int, torch.Tensor]]] = {}
    for index, tensor in tensors:
        groups.setdefault(tensor.dtype, []).append((index, tensor))
    moved = []
    for group in groups.values():
        stacked = torch.stack([tensor for _, tensor in group]).double()
        host = torch.empty(len(group), dtype=torch.float64, pin_memory=True)
        moved.append(([index for index, _ in group], host.copy_(stacked, non_blocking=True)))
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch does not annotate it
    copied.record()

    def wait() -> list[float]:
        copied.synchronize()
        numbers = list(values)
        for indices, host in moved:
            for index, number in zip(indices, host.tolist(), strict=True):
                numbers[index] = number
        return numbers  # type: ignore[return-value] # the tensors among them were just replaced

    return wait
