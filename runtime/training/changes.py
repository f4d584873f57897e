"""What moved between two identities of a run: the lines of a `resumed` annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.events.limits import compact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["changes"]

_HASH_DIGITS = 12


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line per source and per knob that differs between two `open` metadata, sources first.

    A hash is shown by its first 12 hex digits, a knob as compact JSON. Where `sources` was too large to
    record there is nothing to compare.
    """
    lines = []
    if isinstance(old.get("sources"), list) and isinstance(new.get("sources"), list):
        lines += _lines("source", _hashes(old), _hashes(new), lambda digest: str(digest)[:_HASH_DIGITS])
    knobs = old.get("knobs") or {}, new.get("knobs") or {}
    return lines + _lines("knob", *knobs, lambda knob: compact(knob).decode())


def _hashes(identity: Mapping[str, Any]) -> dict[str, str]:
    return {source["path"]: source["sha256"] for source in identity["sources"]}


def _lines(
    what: str, old: Mapping[str, Any], new: Mapping[str, Any], shown: Callable[[Any], str]
) -> list[str]:
    lines = []
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            lines.append(f"{what} {name} is gone")
        elif name not in old:
            lines.append(f"{what} {name} is new")
        elif old[name] != new[name]:
            lines.append(f"{what} {name} {shown(old[name])} -> {shown(new[name])}")
    return lines
