"""A run's checkpoints in a few words, for the tests of them."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from runtime.checkpoints.location import Location
from runtime.events.targets import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runtime.checkpoints.attempt import Attempt
    from runtime.checkpoints.location import Resume
    from runtime.checkpoints.saver import Published, Saver
    from runtime.checkpoints.store import Store

Value = TypeVar("Value")

SLUG = "a-run"
NOTHING_UNSENT = Backlog(None, ())


def begin(store: Store, *, slug: str = SLUG, resume: Resume = "auto") -> Attempt:
    """Find and claim."""
    location = Location(store)
    return location.claim(location.find(slug=slug, resume=resume), session=secrets.token_hex(16))


def saver_of(attempt: Attempt, **tuning: Any) -> Saver:
    """A saver without pauses between its tries."""
    settings: dict[str, Any] = {"expected_bytes": 1 << 16, "backoff_s": (0, 0)}
    return attempt.saver(**settings | tuning)


def save(
    saver: Saver,
    step: int,
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    data: Mapping[str, Any] | None = None,
    backlog: Callable[[], Backlog] = lambda: NOTHING_UNSENT,
) -> Published | None:
    """Save and wait until it is over; None when it was published by nobody's telling."""
    told: list[Published] = []
    assert saver.save(
        step, state(step) if tensors is None else tensors, data or {"step": step}, backlog, told.append
    )
    saver.wait()
    return told[0] if told else None


def state(step: int) -> dict[str, torch.Tensor]:
    """A small state that differs in every value from that of any other step."""
    generator = torch.Generator().manual_seed(step)
    return {
        "model/weight": torch.randn(31, 7, generator=generator),
        "optimizer/step": torch.tensor(float(step)),
        "optimizer/exp_avg": torch.randn(31, 7, generator=generator),
    }


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    """Whether two states are the same bits under the same names."""
    return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    def raw(tensor: torch.Tensor) -> bytes:
        return (
            tensor.detach()
            .resolve_conj()
            .resolve_neg()
            .contiguous()
            .reshape(-1)
            .view(torch.uint8)
            .numpy()
            .tobytes()
        )

    return left.dtype == right.dtype and left.shape == right.shape and raw(left) == raw(right)


def the(value: Value | None) -> Value:
    """What must be there."""
    assert value is not None
    return value


class Gate:
    """Something to hold a saver's thread at: `passing` blocks until `open`."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def passing(self) -> Backlog:
        self._reached.set()
        assert self._open.wait(60)
        return NOTHING_UNSENT

    def reached(self) -> None:
        assert self._reached.wait(60)

    def open(self) -> None:
        self._open.set()
