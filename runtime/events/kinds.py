"""The four kinds of event, each of which is one line of the stream: open, metric, annotation, done."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson

from runtime.events import limits

__all__ = ["Annotation", "Done", "Event", "Json", "Metric", "Open", "Point", "non_finite", "plain"]

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

Point: TypeAlias = "tuple[str, float, Mapping[str, str]]"
"""A metric before it has a step and a time: name, value, metadata."""


@dataclass(frozen=True, slots=True)
class Open:
    """The first line of a stream: who runs. One per attempt; `ts_ms` apart, a resume's is the same.

    `metadata` keeps the order of its keys: it is the run's whole identity, as `Identity` makes it.
    """

    ts_ms: int
    slug: str
    description: str
    metadata: Mapping[str, Json]

    def encode(self) -> bytes:
        """Return the event as one line. Raises `ValueError` for a lone surrogate."""
        return _line(
            {
                "ts_ms": self.ts_ms,
                "kind": "open",
                "slug": self.slug,
                "description": self.description,
                "metadata": plain(self.metadata),
            }
        )


@dataclass(frozen=True, slots=True)
class Metric:
    """One number. A value that is not finite is written as null, with its name beside it."""

    ts_ms: int
    step: int
    name: str
    value: float
    metadata: Mapping[str, str]

    def encode(self) -> bytes:
        """Return the event as one line, metadata sorted by key. Raises `ValueError` for a lone surrogate."""
        if math.isfinite(self.value):
            value = orjson.dumps(self.value)
        else:
            value = b'null,"non_finite":"%b"' % non_finite(self.value).encode()
        metadata = self.metadata if type(self.metadata) is dict else dict(self.metadata)
        try:
            # Part by part: a run says thousands of these, and the whole costs four times as much.
            return b'{"ts_ms":%d,"step":%d,"kind":"metric","name":%b,"value":%b,"metadata":%b}\n' % (
                self.ts_ms,
                self.step,
                orjson.dumps(self.name),
                value,
                orjson.dumps(metadata, option=orjson.OPT_SORT_KEYS),
            )
        except orjson.JSONEncodeError as error:
            raise _no_json("metric", error) from error


@dataclass(frozen=True, slots=True)
class Annotation:
    """A text at a step, within the wire's limits: `Annotation.fitted` cuts what is longer."""

    ts_ms: int
    step: int
    text: str
    metadata: Mapping[str, Json]

    def encode(self) -> bytes:
        """Return the event as one line, metadata sorted by key. Raises `ValueError` for a lone surrogate."""
        return _line(
            {
                "ts_ms": self.ts_ms,
                "step": self.step,
                "kind": "annotation",
                "annotation": self.text,
                "metadata": dict(sorted(_mapping(self.metadata).items())),
            }
        )

    @classmethod
    def fitted(cls, ts_ms: int, step: int, text: str, metadata: Mapping[str, Json]) -> Annotation:
        r"""Return the annotation cut to what Metrics takes: the same text and metadata for every target.

        Lone surrogates (file names that are no UTF-8 carry them into error messages) become `\udcff`.
        """
        shown = limits.cut_lines(_valid(text), limits.MAX_ANNOTATION_UNITS)
        return cls(ts_ms, step, shown, _fitted(_mapping(metadata), step))


@dataclass(frozen=True, slots=True)
class Done:
    """The last line of a run that ended by itself.

    `error` set means that it failed. No line carries it (the annotation `failed: <error>` stands before this
    one); Metrics is told by an event of its own in place of done.
    """

    ts_ms: int
    slug: str
    error: str | None = field(default=None, kw_only=True)

    def encode(self) -> bytes:
        """Return the event as one line. Raises `ValueError` for a lone surrogate."""
        return _line({"ts_ms": self.ts_ms, "kind": "done", "slug": self.slug})


Event: TypeAlias = "Open | Metric | Annotation | Done"


def non_finite(value: float) -> str:
    """Return `nan`, `inf` or `-inf`: the name of a value that JSON cannot write."""
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def plain(value: Json) -> Json:
    """Return `value` with every number that JSON cannot write replaced by its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return non_finite(value)
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _mapping(value: Mapping[str, Json]) -> dict[str, Json]:
    return {key: plain(item) for key, item in value.items()}


def _line(fields: Mapping[str, object]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError as error:
        raise _no_json(fields["kind"], error) from error


def _no_json(kind: object, error: Exception) -> ValueError:
    return ValueError(f"an event of kind {kind} is not JSON: {error}")


def _valid(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _valid_json(value: Json) -> Json:
    if isinstance(value, str):
        return _valid(value)
    if isinstance(value, Mapping):
        return {_valid(key): _valid_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_valid_json(item) for item in value]
    return value


def _fitted(metadata: dict[str, Json], step: int) -> dict[str, Json]:
    """Cut the largest values first, until the whole with its step is what Metrics takes."""
    fitted = {_valid(key): _valid_json(value) for key, value in metadata.items()}
    room = limits.MAX_METADATA_BYTES - len(f',"step":{step}')
    sizes = {key: len(limits.compact(value)) for key, value in fitted.items()}
    excess = len(limits.compact(fitted)) - room
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if excess <= 0:
            break
        fitted[key] = _shortened(fitted[key], max(sizes[key] - excess, 0))
        excess -= sizes[key] - len(limits.compact(fitted[key]))
    return fitted


def _shortened(value: Json, size: int) -> Json:
    """Return a value that takes at most `size` bytes of JSON where its kind allows it."""
    if isinstance(value, list | tuple):
        used = len(f'[,"... {len(value)} more lines"]')
        kept: list[Json] = []
        for item in value:
            used += len(limits.compact(item)) + 1
            if used > size:
                break
            kept.append(item)
        return [*kept, f"... {len(value) - len(kept)} more lines"]
    if isinstance(value, str):
        return (
            limits.cut_units(value, max(size // 6 - 3, 0)) + "..."
        )  # \u0000 is six bytes, the worst there is
    return "too large to record"
