"""What an experiment already has, so that an import adds only what is missing."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from infra.client.output import compact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from infra.metrics.api import Frame
    from runtime.events.syvain import wire

    Digests = NDArray[np.uint64]

__all__ = ["AlreadyThere", "Fingerprints"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Fingerprints:
    """64 bits for each point, from its name, metadata, step, time and the bits of its value.

    Two different ones among ten million points here and ten million there are taken for one with a
    probability below one in 100,000.
    """

    def __init__(self) -> None:
        self._seeds: dict[tuple[bytes, bytes], int] = {}

    def of_frame(self, frame: Frame) -> Digests:
        """Return those of a frame of the server."""
        steps = [-1 if step is None else step for step in frame.data.step]
        seed = _seed(frame.seriesName, frame.metadata)
        seeds = np.full(len(steps), seed, np.uint64)
        return _digests(seeds, steps, frame.data.timestampMs, frame.data.value)

    def of_lines(self, lines: Sequence[wire.MetricLine]) -> Digests:
        """Return those of lines of an event file."""
        seeds = np.array([self._seed_of(line) for line in lines], np.uint64)
        return _digests(
            seeds,
            [line.step for line in lines],
            [line.ts_ms for line in lines],
            [float(bytes(line.value)) for line in lines],
        )

    def _seed_of(self, line: wire.MetricLine) -> int:
        key = bytes(line.name), bytes(line.metadata)
        seed = self._seeds.get(key)
        if seed is None:
            name, metadata = msgspec.json.decode(key[0]), msgspec.json.decode(key[1], type=dict[str, str])
            seed = self._seeds[key] = _seed(name, metadata)
        return seed


class AlreadyThere:
    """The points and annotations of an experiment, as often as it has each: `missing...` takes them away."""

    def __init__(
        self, fingerprints: Fingerprints, frames: Iterable[Frame], annotations: Iterable[dict[str, Any]]
    ) -> None:
        self._fingerprints = fingerprints
        parts = [fingerprints.of_frame(frame) for frame in frames]
        digests = np.concatenate(parts) if parts else np.empty(0, np.uint64)
        self._known, self._num_left = np.unique(digests, return_counts=True)
        self._annotations = Counter(
            (one["annotation"], _canonical(one["meta"]), one["createdAtMs"]) for one in annotations
        )

    def missing(self, lines: Sequence[wire.MetricLine]) -> list[wire.MetricLine]:
        """Return the points of these that the experiment lacks, in their order."""
        if not len(self._known):
            return list(lines)
        digests = self._fingerprints.of_lines(lines)
        at = np.minimum(np.searchsorted(self._known, digests), len(self._known) - 1)
        kept = []
        for line, index, is_known in zip(lines, at.tolist(), self._known[at] == digests, strict=True):
            if is_known and self._num_left[index] > 0:
                self._num_left[index] -= 1
            else:
                kept.append(line)
        return kept

    def lacks(self, line: wire.AnnotationLine) -> bool:
        """Whether the experiment lacks an annotation."""
        text = msgspec.json.decode(line.annotation, type=str)
        key = text, _canonical({**line.metadata, "step": line.step}), line.ts_ms
        if self._annotations[key] > 0:
            self._annotations[key] -= 1
            return False
        return True


def _seed(name: str, metadata: dict[str, str]) -> int:
    text = compact([name, dict(sorted(metadata.items()))]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _canonical(meta: dict[str, Any]) -> str:
    return msgspec.json.encode(meta, order="sorted").decode()


def _digests(seeds: Digests, steps: Sequence[int], times: Sequence[int], values: Sequence[float]) -> Digests:
    digests = _mixed(seeds)
    for column in (np.array(steps, np.int64), np.array(times, np.int64), np.array(values, np.float64)):
        digests = _mixed((digests + _GOLDEN) ^ _mixed(column.view(np.uint64)))
    return digests


def _mixed(values: Digests) -> Digests:
    """Return the finaliser of splitmix64 of each value: every bit of it depends on every bit of the value.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
